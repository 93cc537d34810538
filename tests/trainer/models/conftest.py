"""A small model whose every weight matters, and the same model in plain loops, which takes documents one by one.

The plain model is written from the parameters' names alone. It takes each document, or each annotation after its shared
prefix, as a text of its own: positions from 0, labels from its own tokens, crops as ``KEY.json`` lists them, and tokens
of one unit seeing each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trainer.models.config import DecoderConfig, ModelConfig, VisionEncoderConfig
from trainer.models.model import VisionLanguageModel, build_model

VOCAB = 257
CONFIG = ModelConfig(
    decoder=DecoderConfig(
        hidden_size=24,
        num_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        intermediate_size=40,
        vocab_size=VOCAB,
        rope_theta=100.0,
    ),
    vision=VisionEncoderConfig(
        hidden_size=16,
        num_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=56,
        patch_size=14,
        pool_size=2,
    ),
)


@pytest.fixture(scope="session")
def small_config() -> ModelConfig:
    return CONFIG


@pytest.fixture(scope="session")
def model() -> VisionLanguageModel:
    built = build_model(CONFIG, seed=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in built.named_parameters():
        if parameter.ndim == 1:  # biases of zero and norms of one would hide that they are left out
            parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        if "embedding" in name:
            parameter.data.mul_(20)  # or positions and features would hardly matter
    return built


@pytest.fixture(scope="session")
def document_losses(tiny_dataset: Path) -> Callable[[VisionLanguageModel, Any], list[Tensor]]:
    """The loss of every document of a sample (of every annotation, if it has some), each without the others."""
    image_id = int(json.loads((tiny_dataset / "manifest.json").read_text())["tokenizer"]["image_id"])

    def losses(model: VisionLanguageModel, sample: Any) -> list[Tensor]:
        parameters = dict(model.named_parameters())
        return [_plain_loss(parameters, path) for path in _paths(sample, image_id)]

    return losses


@dataclass(frozen=True, kw_only=True)
class _Path:
    """One document, or one annotation after its prefix, outside its pack."""

    tokens: Tensor
    loss: Tensor
    units: list[int]
    crops: list[np.ndarray]


def _paths(sample: Any, image_id: int) -> Iterator[_Path]:
    """Documents by the spans of ``KEY.json``, crops by its list; of the arrays only tokens, weights and branches."""
    arrays = sample.arrays
    for span in sample.head["documents"]:
        here = slice(span["start"], span["start"] + span["length"])
        branches, tokens = arrays["branch_ids"][here], arrays["tokens"][here]
        of_document = [i for i, image in enumerate(sample.head["images"]) if image["doc_id"] == span["doc_id"]]
        units = np.full(len(tokens), -1)
        units[tokens == image_id] = np.repeat([sample.head["images"][i]["unit"] for i in of_document], 4)
        for branch in range(1, branches.max() + 1) if branches.max() else [0]:
            mine = (branches == 0) | (branches == branch)
            yield _Path(
                tokens=torch.from_numpy(tokens[mine]).long() % VOCAB,
                loss=torch.from_numpy(arrays["loss_weights"][here][mine]).double(),
                units=units[mine].tolist(),
                crops=[sample.images[i] for i in of_document],
            )


def _plain_loss(parameters: dict[str, Tensor], path: _Path) -> Tensor:
    """The loss of one text, whose labels are its own tokens."""
    hidden = _plain_decoder(parameters, path)
    log_probabilities = (hidden @ parameters["decoder.output.weight"].T).log_softmax(1)
    return -(log_probabilities[:-1].gather(1, path.tokens[1:, None])[:, 0] * path.loss[:-1]).sum()


def _linear(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", torch.zeros(()))


def _plain_decoder(p: dict[str, Tensor], path: _Path) -> Tensor:
    decoder, n = CONFIG.decoder, len(path.tokens)
    x = p["decoder.embedding.weight"][path.tokens].clone()
    pooled = [row for crop in path.crops for row in _plain_crop(p, crop)]
    places = [i for i, unit in enumerate(path.units) if unit >= 0]
    for place, row in zip(places, pooled, strict=True):
        x[place] = row
    units = torch.tensor(path.units)
    sees = torch.ones(n, n).tril().bool() | ((units[:, None] == units) & (units >= 0))
    for layer in range(decoder.num_layers):
        at = f"decoder.layers.{layer}"
        normed = _rms_norm(x, p[f"{at}.attention_norm.weight"])
        q, k, v = (_linear(p, f"{at}.attention.{kind}_proj", normed) for kind in "qkv")
        heads = []
        for head in range(4):
            mine, shared = slice(6 * head, 6 * head + 6), slice(6 * (head // 2), 6 * (head // 2) + 6)
            scores = _turn(q[:, mine]) @ _turn(k[:, shared]).T / 6**0.5
            heads.append(scores.masked_fill(~sees, float("-inf")).softmax(1) @ v[:, shared])
        x = x + _linear(p, f"{at}.attention.o_proj", torch.cat(heads, 1))
        normed = _rms_norm(x, p[f"{at}.mlp_norm.weight"])
        x = x + _gated(p, f"{at}.mlp", normed)
    return _rms_norm(x, p["decoder.norm.weight"])


def _gated(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    gate = _linear(p, f"{name}.gate_proj", x)
    return _linear(p, f"{name}.down_proj", gate * gate.sigmoid() * _linear(p, f"{name}.up_proj", x))


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def _turn(x: Tensor) -> Tensor:
    """Rotates pairs, as complex numbers, by position x frequency."""
    pairs = torch.complex(x[:, :3], x[:, 3:])
    angles = torch.outer(torch.arange(len(x)).double(), 100.0 ** (-torch.arange(3).double() / 3))
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], 1)


def _layer_norm(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return centred / scale * p[f"{name}.weight"] + p[f"{name}.bias"]


def _plain_crop(p: dict[str, Tensor], crop: np.ndarray) -> list[Tensor]:
    """One crop's pooled rows, patch by patch and window by window."""
    pixels = torch.tensor(crop).double() / 127.5 - 1
    patches = [pixels[14 * r : 14 * r + 14, 14 * c : 14 * c + 14].reshape(-1) for r in range(4) for c in range(4)]
    x = _linear(p, "vision.patch_embedding", torch.stack(patches)) + p["vision.position_embedding"]
    for block in range(CONFIG.vision.num_layers):
        at = f"vision.blocks.{block}"
        q, k, v = _linear(p, f"{at}.attention.qkv_proj", _layer_norm(p, f"{at}.attention_norm", x)).split(16, 1)
        heads = [(q[:, m] @ k[:, m].T / 8**0.5).softmax(1) @ v[:, m] for m in (slice(0, 8), slice(8, 16))]
        x = x + _linear(p, f"{at}.attention.out_proj", torch.cat(heads, 1))
        up = _linear(p, f"{at}.up_proj", _layer_norm(p, f"{at}.mlp_norm", x))
        x = x + _linear(p, f"{at}.down_proj", torch.nn.functional.gelu(up, approximate="tanh"))
    x = _layer_norm(p, "vision.norm", x)
    rows = []
    for window in ([0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]):
        q = _linear(p, "connector.q_proj", x[window].mean(0))
        k, v = _linear(p, "connector.k_proj", x[window]), _linear(p, "connector.v_proj", x[window])
        pooled = [(k[:, m] @ q[m] / 8**0.5).softmax(0) @ v[:, m] for m in (slice(0, 8), slice(8, 16))]
        rows.append(_gated(p, "connector.projector", _linear(p, "connector.out_proj", torch.cat(pooled))))
    return rows
