"""Attention on meshes as other projects build them, and on one whose ranks are in no particular order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import rank_positions
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.extra.other_meshes import ANY_ORDER


def accelerate_mesh(sizes: dict[str, int]) -> DeviceMesh:
    """Mesh of ``ParallelismConfig.build_device_mesh``: the active axes in its order, joint ones flattened from them."""
    active = {axis: sizes[axis] for axis in ("dp_replicate", "dp_shard", "cp", "sp", "tp") if sizes.get(axis, 1) > 1}
    mesh = init_device_mesh("cpu", tuple(active.values()), mesh_dim_names=tuple(active))
    joint = tuple(axis for axis in ("dp_shard", "cp") if axis in active)
    if joint:
        mesh[joint]._flatten("dp_shard_cp")
    return mesh


def titan_mesh(batch: int, cp: int) -> DeviceMesh:
    """Mesh of ``ParallelDims.get_mesh("cp")``: one axis of a mesh that was unflattened, with axes of size 1."""
    world = init_device_mesh("cpu", (batch * cp,), mesh_dim_names=("world",))
    return world._unflatten(0, (1, batch, cp, 1), ("pp", "batch", "cp", "tp"))["cp"]


def permuted_mesh() -> DeviceMesh:
    """Four ranks in no particular order, the axis of the heads first."""
    return DeviceMesh("cpu", torch.tensor([[2, 0], [1, 3]]), mesh_dim_names=("sp", "cp"))


BOTH = {"ring": "cp", "ulysses": "sp"}
MESHES: dict[str, tuple[Callable[[], DeviceMesh], dict[str, str]]] = {
    "accelerate": (lambda: accelerate_mesh({"cp": 2, "sp": 2}), BOTH),
    "accelerate, ring alone": (lambda: accelerate_mesh({"dp_shard": 2, "cp": 2}), {"ring": "cp"}),
    "accelerate, heads alone": (lambda: accelerate_mesh({"dp_replicate": 2, "sp": 2}), {"ulysses": "sp"}),
    "torchtitan, ring": (lambda: titan_mesh(batch=2, cp=2), {"ring": "cp"}),
    "torchtitan, heads": (lambda: titan_mesh(batch=1, cp=4), {"ulysses": "cp"}),
    "permuted": (permuted_mesh, BOTH),
    "an axis of one rank": (lambda: init_device_mesh("cpu", (4, 1), mesh_dim_names=("cp", "sp")), BOTH),
    "no axis": (lambda: init_device_mesh("cpu", (4,), mesh_dim_names=("dp",)), {}),
}
"""Meshes of four ranks, with the names of their axes."""

if not ANY_ORDER:
    del MESHES["permuted"]  # refused

EXPECTED = {
    # ring ranks x ulysses ranks; then the ranks of each pack by cp_rank
    "accelerate": (2, 2, [[0, 1, 2, 3]]),
    "accelerate, ring alone": (2, 1, [[0, 1], [2, 3]]),
    "accelerate, heads alone": (1, 2, [[0, 1], [2, 3]]),
    "torchtitan, ring": (2, 1, [[0, 1], [2, 3]]),
    "torchtitan, heads": (1, 4, [[0, 1, 2, 3]]),
    "permuted": (2, 2, [[2, 1, 0, 3]]),
    "an axis of one rank": (4, 1, [[0, 1, 2, 3]]),
    "no axis": (1, 1, [[0], [1], [2], [3]]),
}


def members(group: dist.ProcessGroup | None) -> list[int]:
    """The ranks of a group in the order in which its collectives join them."""
    if group is None:
        return [dist.get_rank()]
    parts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, torch.tensor([dist.get_rank()]), group=group)
    return [int(part) for part in parts]


def places(_mesh: Mesh) -> dict[str, Any]:
    """This rank's place on every mesh, and the ranks of its groups."""
    found = {}
    for name, (make, axes) in MESHES.items():
        cp = ContextParallel.from_mesh(make(), **axes)
        groups = [members(group) for group in (cp.cp_group, cp.ring_group, cp.ulysses_group)]
        found[name] = (cp.ring_degree, cp.ulysses_degree, cp.cp_rank, groups)
    return found


def test_ranks_of_a_pack_are_in_order_on_every_mesh(gloo_pool: Any) -> None:
    """Fails when a group joins its ranks in another order than the layout deals tokens to them."""
    answers = gloo_pool.run(places, ring=4)
    for name in MESHES:
        ring, ulysses, packs = EXPECTED[name]
        for pack in packs:
            for cp_rank, rank in enumerate(pack):
                ring_rank, ulysses_rank = divmod(cp_rank, ulysses)
                of_ring, of_heads = pack[ulysses_rank::ulysses], pack[ring_rank * ulysses :][:ulysses]
                assert answers[rank][name] == (ring, ulysses, cp_rank, [pack, of_ring, of_heads]), name


def attend_on(_mesh: Mesh, name: str, fields: dict[str, Any], inputs: list[torch.Tensor]) -> dict[str, Any]:
    """This rank's natural positions, and the output and gradients that each kind gives it on a mesh of that name."""
    make, axes = MESHES[name]
    cp = ContextParallel.from_mesh(make(), **axes)
    degrees = {"ulysses_degree": cp.ulysses_degree, "ulysses_rank": cp.ulysses_rank}
    mine = torch.from_numpy(rank_positions(fields["layout"].runs, ring_rank=cp.ring_rank, **degrees))
    found: dict[str, Any] = {"positions": mine}
    for kind in ("ring", "gather", "ulysses"):
        attend = bind(kind, fields["layout"], MaskTensors.from_arrays(fields["mask"]), cp)
        *wanted, dout = (x[:, mine].clone() for x in inputs)
        wanted = [x.requires_grad_() for x in wanted]
        out = attend(*wanted)
        found[kind] = (out.detach(), *torch.autograd.grad(out, wanted, dout))
    return found


@pytest.mark.parametrize("name", sorted({"accelerate", "permuted"} & set(MESHES)))
def test_attention_is_exact_on_other_meshes(
    name: str, gloo_pool: Any, make_mask: Any, make_layout: Any, make_case: Any, expected: Any, assert_same: Any
) -> None:
    """Fails when ranks send heads or keys to the wrong rank of a mesh that was not made here."""
    mask = make_mask([(0, 0, -1)] * 30 + [(1, 0, 3)] * 20 + [(1, 0, -1)] * 46)
    case = make_case(mask=mask, layout=make_layout(mask, "random", 2), ulysses=2)
    answers = gloo_pool.run(attend_on, name, vars(case), case.inputs(), ring=4)
    natural = torch.from_numpy(np.argsort(torch.cat([answer["positions"] for answer in answers]).numpy()))
    for kind in ("ring", "gather", "ulysses"):
        joined = [torch.cat(parts, dim=1)[:, natural] for parts in zip(*(a[kind] for a in answers), strict=True)]
        assert_same(joined, expected(case))


def refusals(_mesh: Mesh) -> list[str]:
    """Messages about axes that do not fit."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("cp", "sp"))
    calls: list[tuple[DeviceMesh, dict[str, str]]] = [
        (mesh, {"ring": "ring"}),
        (mesh, {"ulysses": "cp", "ring": "cp"}),
        (init_device_mesh("cpu", (2,)), {"ring": "cp"}),
    ]
    said = []
    for given, axes in calls:
        with pytest.raises(ConfigError) as refused:
            ContextParallel.from_mesh(given, **axes)
        said.append(str(refused.value))
    return said


def test_axes_that_do_not_fit_are_refused(gloo_pool: Any) -> None:
    """Fails when a misspelt axis silently means a degree of one."""
    for said in gloo_pool.run(refusals, ring=2):
        assert said[0].startswith("ring is 'ring'; the mesh has the axes cp, sp: name one of them, or leave ring out")
        assert said[1].startswith("ring and ulysses are both 'cp'; name two axes")
        assert "the mesh has the axes (without names)" in said[2]
