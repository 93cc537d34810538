"""Quantised folders give the numbers that they stand for, whatever the ranks, or are refused before that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_ranks import load_on_a_rank
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from preshard.packer_service.demo.model import write_model_folder
from preshard.schemas.errors import ConfigError
from preshard.trainer.core.export import write_folder
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.extra.model_check import check_weights
from preshard.trainer.models.load import load_model

BLOCK = 32
"""Rows and columns of a block; weights of 96 rows have three, which two ranks cannot share."""

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}

WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **WIDE}

EXPERTS = {
    **{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **WIDE, "moe_intermediate_size": 96},
    **{"num_experts": 3, "num_experts_per_tok": 2},
}

GPT_OSS = {
    **{"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], **WIDE, "intermediate_size": 64},
    **{"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 24},
    "layer_types": ["sliding_attention", "full_attention"],
}

HALVES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""Numbers of four bits (E2M1)."""


def saved_model(folder: Path, config: dict[str, Any]) -> None:
    """A tiny model of random weights, which lie in its folder."""
    write_model_folder(folder, "qwen3", vocabulary=300, files={"config.json": config})
    made: Any = load_model(folder, from_scratch=True, seed=1)
    made.save_pretrained(folder)


def in_fp8(folder: Path, block: int = BLOCK, scales: str = "_scale_inv") -> dict[str, Tensor]:
    """Replaces the projections of a folder by codes and scales, one for all of a weight where ``block`` is 0; returns
    what all stand for.
    """
    stored, meant = load_file(folder / "model.safetensors"), {}
    for name, weight in list(stored.items()):
        meant[name] = weight
        if "_proj" not in name:
            continue
        if block:
            largest = torch.nn.functional.max_pool2d(weight.abs()[None], block, ceil_mode=True)[0]
            whole = largest.repeat_interleave(block, 0).repeat_interleave(block, 1)[: len(weight), : weight.shape[1]]
        else:
            largest = whole = weight.abs().max()
        codes = (weight / whole * 448).to(torch.float8_e4m3fn)
        stored[name], stored[name + scales] = codes, largest / 448
        meant[name] = codes.float() * (whole / 448)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return meant


def in_mxfp4(folder: Path) -> dict[str, Tensor]:
    """Replaces the experts of a folder by random codes and scales; returns what all stand for."""
    generator, stored, meant = torch.Generator().manual_seed(3), load_file(folder / "model.safetensors"), {}
    for name, weight in list(stored.items()):
        meant[name] = weight
        if not (name.endswith("_proj") and weight.ndim == 3):
            continue
        experts, inside, outside = weight.shape
        shape = (experts, outside, inside // 32, 16)
        blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 124, shape[:3], generator=generator, dtype=torch.uint8)
        pairs = torch.stack([HALVES[(blocks & 15).long()], HALVES[(blocks >> 4).long()]], -1).flatten(-2)
        del stored[name]
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = blocks, scales
        meant[name] = (pairs * torch.exp2(scales.float() - 127)[..., None]).flatten(-2).transpose(1, 2).contiguous()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return meant


def said(folder: Path, **quantisation: Any) -> None:
    """Puts ``quantization_config`` into a folder's ``config.json``, or takes it out."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("quantization_config", None)
    path.write_text(json.dumps(config | ({"quantization_config": quantisation} if quantisation else {})))


def unequal_on_a_rank(mesh: Mesh, folder: str) -> list[str]:
    """Parameters that are not those of the folder in plain numbers. Runs on each rank of the pool."""
    packed = load_on_a_rank(mesh, f"{folder}/quantised", dtype=torch.float32)
    right = dict(load_model(f"{folder}/plain").named_parameters())
    found = {
        name: each.full_tensor() if isinstance(each, DTensor) else each
        for name, each in packed.inner.named_parameters()
    }
    assert found.keys() == right.keys()
    return [name for name, each in found.items() if not each.equal(right[name])]


CASES: dict[str, Any] = {
    "blocks": (LLAMA, in_fp8, FP8),
    "whole weights": (LLAMA, lambda folder: in_fp8(folder, 0), {**FP8, "weight_block_size": None}),
    "experts": (EXPERTS, in_fp8, FP8),
    "mxfp4": (GPT_OSS, in_mxfp4, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}),
}


@pytest.mark.parametrize(("case", "ranks"), [*((case, 2) for case in CASES), ("experts", 4)])
def test_codes_are_the_numbers_that_they_stand_for(gloo_pool: Any, tmp_path: Path, case: str, ranks: int) -> None:
    """Fails when a rank's rows of codes meet the scales of other rows, or are taken for numbers."""
    pytest.importorskip("accelerate", reason="transformers loads codes in 8 bits with it")
    config, quantise, form = CASES[case]
    plain, quantised = tmp_path / "plain", tmp_path / "quantised"
    for folder in (plain, quantised):
        saved_model(folder, config)
    meant = quantise(quantised)
    assert any(not each.equal(meant[name]) for name, each in load_file(plain / "model.safetensors").items())
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    said(quantised, **form)
    assert not any(gloo_pool.run(unequal_on_a_rank, str(tmp_path), dp_shard=ranks))


def test_an_export_says_nothing_of_codes(tmp_path: Path) -> None:
    """Fails when ``config.json`` of an export describes plain numbers as quantised ones, or layers for multi-token
    prediction that stay behind as codes.
    """
    pytest.importorskip("accelerate", reason="transformers loads codes in 8 bits with it")
    folder = tmp_path / "model"
    saved_model(folder, {**LLAMA, "num_nextn_predict_layers": 1})
    meant = in_fp8(folder)
    further = {"model.layers.2.eh_proj.weight": torch.zeros(64, 128).to(torch.float8_e4m3fn)}
    further |= {"model.layers.2.eh_proj.weight_scale_inv": torch.ones(2, 4)}
    codes = load_file(folder / "model.safetensors")
    save_file(codes | further, folder / "model.safetensors", metadata={"format": "pt"})
    said(folder, **FP8)
    model: Any = load_model(folder)
    write_folder(model, model.state_dict(), folder, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert not any("quant" in key or "compress" in key for key in written)
    assert written["num_nextn_predict_layers"] == 0
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == meant.keys()
    assert all(each.equal(meant[name]) for name, each in found.items())


def test_other_forms_are_refused_by_name(tmp_path: Path) -> None:
    """Fails when a form that ``transformers`` knows is neither read nor refused, also inside of ``text_config``."""
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    saved_model(tmp_path, LLAMA)
    others = {name.removesuffix("_4bit").removesuffix("_8bit") for name in AUTO_QUANTIZER_MAPPING} - {"fp8", "mxfp4"}
    assert others >= {"gptq", "awq", "bitsandbytes", "compressed-tensors", "torchao"}
    for method in others:
        said(tmp_path, quant_method=method)
        refused(tmp_path, f"quantization_config of config.json has quant_method '{method}', and of quantised weights")
    said(tmp_path, load_in_4bit=True)
    refused(tmp_path, "has no quant_method, and of quantised weights only fp8 and mxfp4 are read")
    said(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    inside = {"text_config": {"compression_config": {"quant_method": "compressed-tensors"}}}
    (tmp_path / "config.json").write_text(json.dumps(config | inside))
    refused(tmp_path, "compression_config of config.json has quant_method 'compressed-tensors'")


def refused(folder: Path, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_weights(folder)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_codes_that_nobody_explains_are_refused(tmp_path: Path, file: str) -> None:
    """Fails when codes without scales, without a word in ``config.json``, or in blocks that are not full are read as
    numbers.
    """
    wrong = {**LLAMA, "intermediate_size": 80}
    saved_model(tmp_path, wrong)
    in_fp8(tmp_path)
    codes = load_file(tmp_path / "model.safetensors")

    def store(tensors: dict[str, Tensor]) -> None:
        (tmp_path / "model.safetensors").unlink(missing_ok=True)
        if file.endswith("safetensors"):
            save_file(tensors, tmp_path / file, metadata={"format": "pt"})
        else:
            torch.save(tensors, tmp_path / file)

    store(codes)
    refused(tmp_path, "_proj.weight is stored as F8")
    said(tmp_path, **FP8)
    refused(tmp_path, "is [64, 80] and its scales are [2, 3], so its last block of 32 is not full")
    store({name.replace("_scale_inv", "_scales"): each for name, each in codes.items()})
    refused(tmp_path, "weight_scale_inv beside it: give a complete folder")
    said(tmp_path)
    store({name: (each.float() * 100).to(torch.int8) for name, each in codes.items() if "scale" not in name})
    refused(tmp_path, "is stored as I8, and config.json has no quantization_config")
