"""Weights that each rank reads or draws for itself are those of the whole model, and no rank holds the whole."""

from __future__ import annotations

import gc
import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_ranks import counting_weights, load_on_a_rank
from scripts import load_script
from torch.distributed.tensor import DTensor
from transformers_alone import load_transformers

from preshard.packer_service.demo.model import write_model_folder
from preshard.schemas.errors import ConfigError
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.models.interface import register_attention
from preshard.trainer.models.load import Weights, empty_model, load_model, load_sharded

FAMILIES = ["qwen3", "qwen3_moe", "qwen2_5_vl", "molmo2"]
"""A model of text with tied embeddings, one whose files have a tensor for each expert and its memory one for all, one
whose weights have other names in its files, and one with large vectors."""

CONFIGS: dict[str, Any] = {
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 3,  # so that one of four ranks has none
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
    },
}

DEEP = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12, "head_dim": 64}
"""A model nearly all of which is blocks."""


def saved_model(folder: Path, config: dict[str, Any], family: str = "qwen3") -> Any:
    """A tiny model of random weights, which lie in its folder."""
    write_model_folder(folder, family, vocabulary=300, files={"config.json": config})
    original: Any = load_model(folder, from_scratch=True, seed=1)
    original.save_pretrained(folder)
    return original


def unequal_on_a_rank(mesh: Mesh, folder: str) -> list[str]:
    """Parameters and buffers that are not those of the whole model. Runs on each rank of the pool."""
    wrong = []
    for source in ("random", "folder"):
        torch.manual_seed(mesh.dp_rank + 5 * mesh.cp.cp_rank)
        packed = load_on_a_rank(mesh, folder, weights="random" if source == "random" else "folder")
        whole = load_model(folder, from_scratch=source == "random", seed=3)
        assert packed.training
        right = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
        found = {**dict(packed.inner.named_parameters()), **dict(packed.inner.named_buffers())}
        assert found.keys() == right.keys()
        for name, tensor in found.items():
            joined = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            expected = right[name].double() if isinstance(tensor, DTensor) else right[name]
            if not joined.equal(expected):
                wrong.append(f"{source} {name}")
    return wrong


OFTEN = ("qwen3_moe", "molmo2")


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in FAMILIES]
)
def test_parts_are_those_of_the_whole_model(gloo_pool: Any, tmp_path: Path, family: str) -> None:
    """Fails when random weights depend on the ranks or the ambient generator, when rows go to another rank, when names
    of published weights are not known, or when rotary frequencies are left as they were allocated.
    """
    known = "qwen3" if family == "qwen3_moe" else family
    saved_model(tmp_path, CONFIGS.get(family, {}), known)
    degrees = {"qwen3": {"dp_replicate": 2, "dp_shard": 2}, "qwen3_moe": {"dp_shard": 4}}.get(family, {"ring": 2})
    assert not any(gloo_pool.run(unequal_on_a_rank, str(tmp_path), **degrees))


def anonymous_bytes() -> int:
    """Memory of this process that is no file's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def peak_on_a_rank(mesh: Mesh, folder: str, weights: Weights) -> tuple[int, int]:
    """Most memory that loading took on top, and bytes of the parameters that lie here in the end."""
    load_on_a_rank(mesh, folder, weights=weights, dtype=torch.float32)  # what is made once, such as imports
    gc.collect()
    before = peak = anonymous_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.0005):
            peak = max(peak, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    packed = load_on_a_rank(mesh, folder, weights=weights, dtype=torch.float32)
    done.set()
    watcher.join()
    local = [p.to_local() if isinstance(p, DTensor) else p for p in packed.parameters()]
    return max(peak, anonymous_bytes()) - before, sum(tensor.nbytes for tensor in local)


def test_no_rank_holds_the_whole_model(gloo_pool: Any, tmp_path: Path) -> None:
    """Fails when a rank reads or draws the whole model before it keeps its part."""
    original = saved_model(tmp_path, DEEP)
    whole = sum(parameter.nbytes for parameter in original.parameters())
    block = sum(parameter.nbytes for parameter in original.model.layers[0].parameters())
    assert block < whole / 10
    sources: list[Weights] = ["folder", "random"]
    for weights in sources:
        peaks = []
        for _ in range(3):  # on a busy machine the allocator may keep more, once
            found = gloo_pool.run(peak_on_a_rank, str(tmp_path), weights, dp_shard=2)
            assert [local for _, local in found] == [pytest.approx(whole / 2, rel=0.01)] * 2
            peaks.append(max(peak for peak, _ in found))
            if peaks[-1] < whole / 2 + 4 * block < 0.9 * whole:  # its half, and a block or two
                break
        else:
            pytest.fail(f"{weights}: {[peak / whole for peak in peaks]} of the model")


def bytes_on_a_rank(mesh: Mesh, folder: str) -> int:
    """Bytes of weights that loading takes out of files. Runs on each rank of the pool."""
    with counting_weights() as taken:
        load_on_a_rank(mesh, folder, dtype=torch.float32)
    return sum(taken)


EXPERTS = {**CONFIGS["qwen3_moe"], "num_experts": 8, "moe_intermediate_size": 256}
"""A model most of which is experts."""


@pytest.mark.parametrize("config", [DEEP, EXPERTS], ids=["blocks", "experts"])
def test_a_rank_reads_its_rows_alone(gloo_pool: Any, tmp_path: Path, config: dict[str, Any]) -> None:
    """Fails when each rank reads every tensor whole, or all experts, and keeps its part: a large model from a shared
    disk, once for each rank.
    """
    original = saved_model(tmp_path, config)
    whole = sum(parameter.nbytes for parameter in original.parameters())
    experts = sum(parameter.nbytes for name, parameter in original.named_parameters() if ".experts." in name)
    assert (experts > whole / 2) == (config is EXPERTS)
    read = gloo_pool.run(bytes_on_a_rank, str(tmp_path), dp_shard=4)
    assert sum(read) == whole
    assert max(read) == pytest.approx(whole / 4, rel=0.01)


def test_weights_that_are_not_all_there_are_named(tmp_path: Path) -> None:
    """Fails when a layer without weights is trained from random ones, or a damaged file ends in a traceback."""
    original = saved_model(tmp_path, {})
    state = original.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    original.save_pretrained(tmp_path, state_dict=state)
    register_attention().logging.set_verbosity_error()
    with pytest.raises(ConfigError, match=r"has no weights for model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(ConfigError, match="is cut short or damaged") as raised:
        load_model(tmp_path)
    assert "\n" not in str(raised.value)


def test_how_a_model_generates_is_kept(tmp_path: Path) -> None:
    """Fails when a saved model stops or samples otherwise than its folder says: at one token alone, or greedily."""
    transformers = register_attention()
    folder = tmp_path / "model"
    write_model_folder(folder, "qwen3", vocabulary=300)
    load_model(folder, from_scratch=True).save_pretrained(folder)  # type: ignore[operator]
    given = {"do_sample": True, "temperature": 0.6, "eos_token_id": [4, 2], "pad_token_id": 2, "max_new_tokens": 77}
    (folder / "generation_config.json").write_text(json.dumps(given))
    for name, model in (
        ("ours", load_model(folder)),
        ("theirs", transformers.AutoModelForCausalLM.from_pretrained(folder)),
    ):
        model.save_pretrained(tmp_path / name)  # type: ignore[operator]
    ours, theirs = (json.loads((tmp_path / name / "generation_config.json").read_text()) for name in ("ours", "theirs"))
    assert ours == theirs
    assert given.items() <= ours.items()


E_SIZED: dict[str, Any] = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96}
"""Settings of the Gemma 4 models that give each layer embeddings of its own."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("kind", "settings"), [("gemma3_text", {}), ("gemma4_text", E_SIZED)])
def test_scales_of_embeddings_are_those_of_transformers(
    tmp_path: Path, kind: str, settings: dict[str, Any], dtype: torch.dtype
) -> None:
    """Fails when the root of a width is rounded otherwise than ``from_pretrained`` does it, which 64 would not show."""
    transformers = load_transformers()
    config = load_script(Path(__file__).with_name("followed.py")).tiny_config(kind, **settings)
    assert math.sqrt(config["hidden_size"]) != torch.tensor(config["hidden_size"]).sqrt().item()
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    made: Any = load_model(tmp_path, from_scratch=True)
    made.save_pretrained(tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    right = dict(plain.named_buffers())
    assert any(name.endswith("embed_scale") for name in right)
    sources: list[Weights] = ["folder", "random", "none"]
    for weights in sources:
        found = dict(load_sharded(tmp_path, lambda model: model, dtype=dtype, weights=weights).named_buffers())
        assert right.keys() == found.keys()
        unequal = [name for name in right if not found[name].to(dtype).equal(right[name].to(dtype))]  # as it multiplies
        assert unequal == [], weights


def test_a_model_without_weights_has_none_on_the_host(tmp_path: Path) -> None:
    """Fails when a parameter that a model draws by itself, whatever the device, is made before it is sharded."""
    config = load_script(Path(__file__).with_name("followed.py")).tiny_config("diffllama")
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert {parameter.device.type for parameter in empty_model(tmp_path).parameters()} == {"meta"}
    made: Any = load_model(tmp_path, from_scratch=True)
    drawn = [parameter for name, parameter in made.named_parameters() if "lambda" in name]
    assert drawn
    assert all(parameter.count_nonzero() for parameter in drawn)
