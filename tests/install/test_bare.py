"""The wheel with its base dependencies alone: a reader for a training cluster, and clear about what it lacks."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Environment = Callable[..., "CompletedProcess[str]"]

READ = """
import sys
import torch
from preshard.attention import ContextParallel, MaskTensors, bind, reference_attention
from preshard.data import PackedDataset

dataset = PackedDataset(sys.argv[1], ring_degree=2, cp_rank=1, layout="zigzag")
batches = list(dataset)
whole = next(iter(PackedDataset(sys.argv[1])))
mask = MaskTensors.of(whole)
q, k, v = (torch.randn(2, whole.seq_len, 16, requires_grad=True) for _ in range(3))
out = bind("gather", whole.layout, mask, ContextParallel())(q, k, v)
out.sum().backward()
torch.testing.assert_close(out, reference_attention(q, k, v, mask))
print(len(batches), sum(len(batch.tokens) for batch in batches), sum(len(batch.images) for batch in batches))
"""


@pytest.mark.slow
def test_the_bare_install_reads_a_rank_s_part(bare: Environment, tiny_dataset: Path) -> None:
    """Fails when the reader or the attention needs a package that `pip install preshard` does not bring, or warns."""
    done = bare("-c", READ, str(tiny_dataset))
    assert done.stderr == ""
    packs, tokens, images = map(int, done.stdout.split())
    assert packs > 1
    assert tokens == packs * 1024 // 2
    assert images > 0


def test_the_bare_install_lacks_what_the_packer_needs(bare: Environment) -> None:
    """Fails when the environment of these tests sees the packages of this one, and the tests above show nothing."""
    heavy = ["ray", "av", "numba", "fastapi", "webdataset", "mistral_common", "tokenizers", "click", "rich", "yaml"]
    assert all(importlib.util.find_spec(name) for name in heavy)
    found = bare("-c", f"import importlib.util as u; print([n for n in {heavy} if u.find_spec(n)])")
    assert found.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        *(((), "pack"), (("pack", "a", "--out", "b"), "pack"), (("serve", "a"), "serve")),
        *((("demo-source", "a"), "demo"), (("demo-model", "a"), "demo")),
    ],
)
def test_a_command_without_its_extra_says_what_to_install(
    bare: Environment, arguments: tuple[str, ...], extra: str
) -> None:
    """Fails when a missing package ends in a traceback, or in advice that names another extra."""
    done = bare(*arguments, program="preshard")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith(f"which is not installed: pip install 'preshard[{extra}]'\n")


@pytest.mark.parametrize("module", ["preshard.train", "preshard.export"])
def test_the_trainer_without_its_extra_says_what_to_install(bare: Environment, module: str) -> None:
    """Fails when `python -m preshard.train` of a bare install ends in a traceback."""
    done = bare("-m", module, "--help")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("which is not installed: pip install 'preshard[train]'\n")
