"""Tiny Hugging Face models, packs for them, and what ``transformers`` makes of each document alone."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from model_oracle import model_inputs
from packed_ranks import Answer, experts_in_float64
from PIL import Image
from torch import Tensor

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.schemas.model.families import FAMILIES
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.families.family import has_transformers
from preshard.trainer.families.pictures import InputUnit
from preshard.trainer.models.load import load_model

# This build of torchvision has operators for CUDA alone; what models use of it is plain torch.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

SETTINGS = [
    *("seq_len=1024", "block_size=64", "max_images=64", "order.window=1", "image_format=png"),
    *("cp_sizes=[1,2,4,8]", "ring_degrees=[1,2,4,8]", "video.max_frames=4"),
    "cost.link_gb_per_s=1000000",  # else features of models so small cost more to send than to make
]
VOCABULARY = 400
EXACT_SECONDS = (5, 18)
"""The version from which on Qwen2.5-VL's positions follow fractions of a second."""

_STATES: dict[str, Any] = {
    **{"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 8},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 6, "linear_conv_kernel_dim": 4},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}
"""Sizes of layers with a state: eight ranks share the value heads, and each key head is copied."""

WINDOW = {
    **{"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1},
    "layer_types": ["full_attention", "sliding_attention"],
}
"""A layer with a window much shorter than documents, beside one without."""

_LATENT: dict[str, Any] = {
    **{"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "v_head_dim": 16},
    **{"qk_rope_head_dim": 8, "head_dim": 8},
}
"""Sizes of attention with a latent: keys of 20 numbers, and values of 16, the fewest that CUDA's kernels take."""

_ROUTED: dict[str, Any] = {
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1},
    **{"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
}
"""A layer of experts behind one without."""

_YARN: dict[str, Any] = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0},
    **{"mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 64},
}

TEXT_MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
    "qwen3_next": {
        **{"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], **_STATES},
        **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0]},
        "shared_expert_intermediate_size": 32,
    },
    "qwen3_5_text": {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], **_STATES},
    "mistral-windows": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 24},
    "qwen3-windows": WINDOW,
    "gpt_oss": {
        **{"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "sliding_window": 24},
        **{"layer_types": ["sliding_attention", "full_attention"], "num_local_experts": 4, "num_experts_per_tok": 2},
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0},
            **{"truncate": False, "original_max_position_embeddings": 64},
        },
    },
    "gemma2": {
        **{**WINDOW, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 1},
        **{"attn_logit_softcapping": 0.2, "final_logit_softcapping": 0.5},
    },
    "deepseek_v3": {
        **{"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], **_LATENT, **_ROUTED},
        "rope_parameters": _YARN,
    },
    "deepseek_v2": {
        **{"model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], **_LATENT, **_ROUTED},
        "topk_method": "group_limited_greedy",
    },
    "axk1": {
        **{"model_type": "axk1", "architectures": ["AXK1ForCausalLM"], **_LATENT, **_ROUTED},
        "mlp_layer_types": ["dense", "sparse"],
    },
    "youtu": {"model_type": "youtu", "architectures": ["YoutuForCausalLM"], **_LATENT},
    "glm4_moe_lite": {
        **{"model_type": "glm4_moe_lite", "architectures": ["Glm4MoeLiteForCausalLM"], **_LATENT, **_ROUTED},
        "v_head_dim": 28,
    },
    "minicpm3": {
        **{"model_type": "minicpm3", "architectures": ["MiniCPM3ForCausalLM"], **_LATENT, "dim_model_base": 16},
    },
    "mimo_v2_flash": {
        **{**WINDOW, "model_type": "mimo_v2_flash", "architectures": ["MiMoV2FlashForCausalLM"], "v_head_dim": 24},
        **{**_ROUTED, "mlp_layer_types": ["dense", "sparse"]},
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
            for kind, theta in (("full_attention", 5e6), ("sliding_attention", 1e4))
        },
    },
    "gemma3_text": {**WINDOW, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]},
}
"""Models of text, by how their ``config.json`` differs from that of Qwen3."""

EAGER = ("gpt_oss", "gemma2", "mimo_v2_flash")
"""Models whose attention ``sdpa`` does not compute: it knows neither sinks nor caps."""

_EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}

_SCALED_LATENT = {
    **{"model_type": "mistral4", **_LATENT, **_ROUTED, "head_dim": 20},
    "rope_parameters": {**_YARN, "partial_rotary_factor": 0.4, "llama_4_scaling_beta": 0.1},
}
"""Attention with a latent whose queries are scaled by their position, within the lengths of documents."""

_SMALL_GEMMA = {
    **{"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCABULARY + 64, "num_kv_shared_layers": 2},
    **{"num_hidden_layers": 5, "use_double_wide_mlp": True, "attention_k_eq_v": False},
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}
"""Features of E2B and E4B: embeddings of each layer, and last layers with the keys of those before."""

_AUDIO = {
    **{"model_type": "gemma4_audio", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"subsampling_conv_channels": [8, 4], "output_proj_dims": 16, "attention_chunk_size": 4},
}
"""An encoder of audio, which packs do not reach."""

IMAGE_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral3-latent": ("mistral3", {"text_config": _SCALED_LATENT}),
    "internvl-windows": ("internvl", {"text_config": WINDOW}),
    "gemma4-experts": ("gemma4", {"text_config": _EXPERTS}),
    "gemma4-small": ("gemma4", {"text_config": _SMALL_GEMMA, "audio_config": _AUDIO}),
}
"""Models of images by the family and how their ``config.json`` differs from its own."""


TYPES = {"gemma3": "token_type_ids"}
"""Name under which a model is told which tokens are images, where it has a name of its own."""


def write_source(folder: Path, documents: int, *, images: bool, annotated: bool = True) -> None:
    """Conversations with images of several shapes, and without; and two annotations of one document, unless told."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for number in range(documents):
        n_images = (2, 0, 1)[number % 3] if images else 0
        parts: list[dict[str, Any]] = []
        for image in range(n_images):
            name = f"{number}-{image}.png"
            side = (60 + 31 * (number % 9), 200 - 17 * (number % 9))
            Image.fromarray(noise.integers(0, 255, (*side, 3), np.uint8)).save(folder / name)
            parts += [{"type": "image", "image": name}, {"type": "text", "text": f"picture {image}"}]
        parts.append({"type": "text", "text": "what is this? " * (3 + 5 * number)})
        answer = "It is noise, as far as anybody can tell. " * (1 + number % 4)
        messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
        rows.append({"id": f"row-{number}", "messages": messages})
    asked = [[{"role": "user", "content": f"{number}: what is this? " * number}] for number in (5, 9)]
    annotations = [[*turns, {"role": "assistant", "content": "Noise, as before. " * 4}] for turns in asked]
    media = [{"type": "image", "image": "0-0.png"}] if images else []
    if annotated:
        rows.append({"id": "annotated", "media": media, "annotations": annotations})
    if images:
        _write_video(folder / "clip.mp4", noise)
        parts = [{"type": "video", "video": "clip.mp4"}, {"type": "text", "text": "what moves?"}]
        messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "All of it."}]
        rows.append({"id": "clip", "messages": messages})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def _write_video(path: Path, noise: np.random.Generator) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width, stream.height = 96, 64
        for _ in range(8):
            frame = av.VideoFrame.from_ndarray(noise.integers(0, 255, (64, 96, 3), np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def make_model(
    folder: Path,
    family: str,
    progress: Any,
    *,
    documents: int = 9,
    annotated: bool = True,
    settings: Sequence[str] = (),
    vocabulary: int | None = VOCABULARY,
) -> None:
    """A tiny model with random weights in ``folder/model``, and documents packed for it in ``folder/dataset``.

    There is a document with a video more where the model takes any. ``settings`` go before :data:`SETTINGS`.
    """
    base, changed = ("qwen3", TEXT_MODELS[family]) if family in TEXT_MODELS else IMAGE_MODELS.get(family, (family, {}))
    write_model_folder(folder / "model", base, vocabulary=vocabulary, files={"config.json": changed})
    write_source(folder / "source", documents, images=base in FAMILIES, annotated=annotated)
    config = load_config(None, [*SETTINGS, *settings, f"model={folder / 'model'}"])
    pack([str(folder / "source" / "rows.jsonl")], str(folder / "dataset"), config, PlainExecutor(), progress)
    load_model(folder / "model", from_scratch=True, seed=1).save_pretrained(folder / "model")


def load_original(folder: Path, family: str) -> Any:
    """The model as anyone loads it, in float64."""
    import transformers

    auto = transformers.AutoModelForCausalLM if family in TEXT_MODELS else transformers.AutoModelForImageTextToText
    attention: Any = "eager" if family in EAGER else "sdpa"
    if "audio_config" in IMAGE_MODELS.get(family, ("", {}))[1]:  # whose encoder has no sdpa
        attention = dict.fromkeys(("", "text_config", "vision_config"), attention)
    model = auto.from_pretrained(folder / "model", dtype=torch.float64, attn_implementation=attention)
    return experts_in_float64(model).train()


def alone(model: Any, batch: RankBatch) -> Tensor:
    """The sum of weight x cross entropy of a whole pack's documents, each through the model alone.

    Each annotation of a document goes after what they share through the model, without the others.

    Args:
        model: as ``from_pretrained`` makes it, with an attention of its own.
        batch: the whole pack, in natural order.
    """
    total = torch.zeros((), dtype=torch.float64)
    for number, own, new in _paths(batch):
        ids = batch.tokens[own][None]
        inputs = _inputs(batch, number)
        rows = torch.from_numpy(np.isin(ids.numpy(), batch.model.row_ids if batch.model is not None else []))
        given: dict[str, Any] = {name: torch.from_numpy(array) for name, array in inputs.items()}
        if batch.model is not None and batch.model.row_ids:
            given[TYPES.get(batch.model.model_type, "mm_token_type_ids")] = _token_types(batch, own, rows)
        if model.config.model_type != "gemma4":  # whose encoder scales pixels in float32, and converts them then
            given = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
        if model.config.model_type in ("exaone4_5", "internvl", "kimi_k25", "mistral3", "lighton_ocr"):
            del given["mm_token_type_ids"]
        if model.config.model_type == "qwen2_5_vl" and "video_grid_thw" in given:
            given |= _times(model, batch, number, own)
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **given).logits[0]
        counted = (batch.labels[own] >= 0) & new
        losses = torch.nn.functional.cross_entropy(
            logits[counted].double(), batch.labels[own][counted], reduction="none"
        )
        total = total + (losses * batch.loss_weights[own][counted].double()).sum()
    return total


def _paths(batch: RankBatch) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yields for each document, or for each annotation of one after its prefix, the document's number, the positions of
    its tokens, and which of these no earlier path of the document held.
    """
    for number in range(int(batch.doc_ids.max()) + 1):
        mine = batch.doc_ids == number
        branches = range(1, int(batch.branch_ids[mine].max()) + 1) or range(1)
        for branch in branches:
            own = torch.nonzero(mine & ((batch.branch_ids == 0) | (batch.branch_ids == branch)))[:, 0]
            yield number, own, (batch.branch_ids[own] == branch) | torch.tensor(branch <= 1)


def _token_types(batch: RankBatch, own: Tensor, rows: Tensor) -> Tensor:
    assert batch.model is not None
    if batch.model.group_ids:  # molmo2: the tokens that see each other
        return torch.from_numpy(np.isin(batch.tokens[own][None].numpy(), batch.model.group_ids).astype(np.int64))
    types = torch.ones_like(batch.tokens)
    for unit in batch.units:
        if unit.kind != "image":
            types[unit.start : unit.end] = 2
    return types[own][None] * rows


def _times(model: Any, batch: RankBatch, number: int, own: Tensor) -> dict[str, Tensor]:
    """Seconds between two patches of time of each video, which the processor would have read from the video.

    Positions instead for a ``transformers`` that rounds these seconds down.
    """
    ordered = [batch.units[place] for place in batch.unit_order]
    steps = {unit.medium: unit.time_step for unit in ordered if unit.document == number and unit.kind != "image"}
    assert set(steps.values()) != {1.0}, "no video whose time matters"
    if not has_transformers(EXACT_SECONDS):
        return {"position_ids": batch.position_ids[:, own][:, None]}
    seconds = torch.tensor(list(steps.values()), dtype=torch.float64) / model.config.vision_config.tokens_per_second
    return {"second_per_grid_ts": seconds}


def _inputs(batch: RankBatch, number: int) -> dict[str, np.ndarray]:
    pictures, edges = [picture.numpy() for picture in batch.pictures], batch.unit_edges.tolist()
    spans = list(pairwise(edges))
    units = [
        InputUnit(
            document=0, medium=unit.medium, kind=unit.kind, grid=tuple(unit.grid), pictures=tuple(pictures[start:end])
        )
        for unit, (start, end) in ((batch.units[place], spans[place]) for place in batch.unit_order)
        if unit.document == number
    ]
    return model_inputs(batch.model.settings, units) if batch.model is not None and units else {}


def whole_packs(dataset: str) -> Sequence[RankBatch]:
    """Every pack in natural order, by its number."""
    return sorted(PackedDataset(dataset), key=lambda batch: batch.pack_id)


@dataclass(frozen=True, kw_only=True)
class Right:
    """Results of each pack's documents alone.

    Attributes:
        losses, gradients: by pack.
        sizes: numbers of each parameter.
    """

    losses: dict[int, float]
    gradients: dict[int, Tensor]
    sizes: list[int]


def right_answers(folder: Path, family: str) -> Right:
    """Loss and gradient of every pack's documents, each through the unmodified model alone."""
    model = load_original(folder, family)
    losses, gradients = {}, {}
    for batch in whole_packs(str(folder / "dataset")):
        model.zero_grad()
        loss = alone(model, batch)
        loss.backward()
        losses[batch.pack_id] = loss.item()
        parts = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
        gradients[batch.pack_id] = torch.cat([part.flatten() for part in parts])
    sizes = [parameter.numel() for parameter in model.parameters()]
    return Right(losses=losses, gradients=gradients, sizes=sizes)


def compare(ranks: Sequence[Answer], right: Right) -> float:
    """The largest relative difference of loss, gradient norm, and any parameter's gradient against the whole norm."""
    packs = {pack for answer in ranks for pack in answer["packs"]}
    loss = sum(right.losses[pack] for pack in packs)
    gradient = torch.stack([right.gradients[pack] for pack in packs]).sum(0)
    found = ranks[0]["gradient"]
    norm = gradient.norm()
    apart = [part.norm() for part in (found - gradient).split(right.sizes)]
    figures = [abs(sum(a["loss"] for a in ranks) - loss) / loss, abs(found.norm() - norm) / norm, max(apart) / norm]
    return float(torch.stack([torch.as_tensor(figure) for figure in figures]).max())  # NaN if any is
