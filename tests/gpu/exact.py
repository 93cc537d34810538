"""Attention of every kind, layout and form of mask, encoders' attention, and a step of tiny models, against float64.

Attention of all ranks of 8 is compared with a dense softmax over a mask that is made here from the format's rule; a
step with that of the same model on the CPU. An error is the norm of the difference over the norm of what is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import common
import numpy as np
import torch
from common import Given, Table
from ranks import MainThreadKernel, run_ranks
from torch import Tensor

from preshard.attention import ContextParallel
from preshard.data import PackedDataset
from preshard.models import PackedModel, compile_blocks, load_model
from preshard.schemas.layout import SCHEMES, TokenLayout, rank_positions
from preshard.schemas.mask import needed_blocks
from preshard.schemas.schemes import define_runs
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.kernels import flex
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.models.interface import encoder_attention

KINDS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "gather": ("gather", 1, 8, {}),
    "ring": ("ring", 1, 8, {}),
    "ulysses": ("ulysses", 8, 1, {}),
    "hybrid 2 x 4": ("hybrid", 2, 4, {}),
    "gather, turns": ("gather", 1, 8, {"head_stride": 1}),
    "gather, overlap": ("gather", 1, 8, {"overlap": True}),
    "ulysses, overlap": ("ulysses", 4, 1, {"overlap": True}),
    "gather 2 x 4": ("gather", 2, 4, {}),
    "gather all": ("gather", 1, 8, {"exchange": "all"}),
}
"""Kind, Ulysses and ring degrees, and options of ``bind``."""

SINKS, WIDER, LATENTS = "sinks", "wider keys", "latents"
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "one document": ("one", {}),
    "documents": ("documents", {}),
    "images": ("images", {}),
    "annotations": ("annotations", {}),
    "window": ("documents", {"window": 1.3}),
    "softcap": ("images", {"softcap": 1.5}),
    "sinks": ("images", {SINKS: True}),
    "window, images": ("images", {"window": 1.0}),
    "window, annotations": ("annotations", {"window": 0.6}),
    "sinks, window": ("documents", {SINKS: True, "window": 1.0}),
    "softcap, window": ("images", {"softcap": 1.5, "window": 1.0}),
    "two widths": ("images", {WIDER: True}),
    "two widths, window": ("documents", {WIDER: True, "window": 1.3}),
    "latents": ("images", {LATENTS: True}),
}
"""A mask, a window in sixteenths of the sequence, a cap of scores, sinks, keys half as wide again as values, and the
latents that such keys and values are made of."""

TABLES = ("float32", "bfloat16", "models")
NAMES = (*TABLES, *FORMS)

LIMITS = {"float32": 2e-5, "bfloat16": 2e-2}
STEP_LIMITS = {"float32": 1e-4, "bfloat16": 6e-2, "bfloat16 gemma4": 0.3}
"""Tolerances of a step's loss and gradient. Gemma 4's tiny model is 0.16 apart on a CPU, and 0.22 on an H200."""
COMPILED = ("qwen3", "qwen3_vl", "gemma2", "gpt_oss", "glm4v", "gemma4", "mistral3", "qwen3_5")
"""Families whose blocks are compiled as well: kinds of block that differ."""


def masks(seq_len: int) -> dict[str, MaskArrays]:
    """Masks of four kinds: documents end anywhere, images fill half of each, annotations share a prefix."""
    step, rng = seq_len // 16, np.random.default_rng(11)
    edges = np.sort(rng.choice(np.arange(1, 16), 4, replace=False)) * step
    doc = np.searchsorted(edges, np.arange(seq_len), side="right").astype(np.int32)
    doc[-step // 2 :] = -1  # padding
    zeros, none = np.zeros(seq_len, np.int32), np.full(seq_len, -1, np.int32)
    group = none.copy()
    for number, start in enumerate(range(step // 4, seq_len - step, step)):
        if doc[start] == doc[start + step // 2] >= 0:
            group[start : start + step // 2] = number
    branch, outside = zeros.copy(), group.copy()
    first = np.flatnonzero(doc == 0)
    answers = first[len(first) // 2 :]
    branch[answers] = 1 + np.arange(len(answers)) * 3 // len(answers)
    for at in np.flatnonzero(np.diff(branch, prepend=0)):  # no image lies in two annotations
        outside[(group == group[at]) & (group[at] >= 0)] = -1
    made = {
        "one": (zeros, zeros, none),
        "documents": (doc, zeros, none),
        "images": (doc, zeros, group),
        "annotations": (doc, branch, outside),
    }
    return {name: MaskArrays(doc_ids=d, branch_ids=b, group_ids=g) for name, (d, b, g) in made.items()}


def seen(mask: MaskArrays, window: int | None) -> np.ndarray:
    """The format's rule as a matrix, (queries, keys)."""
    doc, branch, group = mask.doc_ids, mask.branch_ids, mask.group_ids
    at, place = np.arange(len(doc)), np.zeros(len(doc), np.int64)
    pairs = (doc[:, None] == doc) & (doc >= 0) & ((branch == 0) | (branch == branch[:, None]))
    pairs &= (at <= at[:, None]) | ((group[:, None] == group) & (group >= 0))
    for number in np.unique(doc[doc >= 0]):  # an annotation's places follow those of what is shared
        shared = (doc == number) & (branch == 0)
        place[shared] = np.arange(shared.sum())
        for each in np.unique(branch[(doc == number) & (branch > 0)]):
            own = (doc == number) & (branch == each)
            place[own] = shared.sum() + np.arange(own.sum())
    return pairs if window is None else pairs & (place[:, None] - place < window)


def draw(settings: dict[str, Any], seq_len: int, width: int, seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Queries, keys, values and the output's gradient, or latents and keys' shared part for keys and values; and what
    every rank has whole: sinks, or the matrix that expands latents."""
    rng = torch.Generator().manual_seed(seed)
    if LATENTS in settings:
        shapes = [(8, width * 3 // 2), (1, width * 2), (1, width // 2), (8, width)]
        whole = {"up": torch.randn(width * 2, 8, width * 2, generator=rng) * (width * 2) ** -0.5}
    else:
        keys = width * 3 // 2 if WIDER in settings else width
        shapes = [(8, keys), (4, keys), (4, width), (8, width)]
        whole = {"sinks": torch.linspace(-1, 2, 8)} if SINKS in settings else {}
    return [torch.randn(heads, seq_len, each, generator=rng) for heads, each in shapes], whole


def right_of(exact: list[Tensor], whole: dict[str, Tensor], pairs: Tensor, softcap: float | None) -> Tensor:
    """Output in the dtype of what is given; latents are expanded as DeepSeek-V2 defines it."""
    q, k, v = exact
    if "up" in whole:
        made = torch.einsum("tc,ckx->ktx", k[0], whole["up"])
        plain, values = made.tensor_split([q.shape[-1] - v.shape[-1]], -1)
        k, v = torch.cat([plain, v.expand(len(plain), -1, -1)], -1), values
    return dense(q, k, v, pairs, softcap, whole.get("sinks"))


def dense(q: Tensor, k: Tensor, v: Tensor, pairs: Tensor, softcap: float | None, sinks: Tensor | None) -> Tensor:
    """Softmax over the pairs; a sink joins each row's sum."""
    copies = len(q) // len(k)
    scores = q @ k.repeat_interleave(copies, 0).mT / q.shape[-1] ** 0.5
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~pairs, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(pairs), 1)], -1)
    weights = torch.softmax(scores, -1).nan_to_num()[..., : len(pairs)]  # a row of padding sees nothing
    return weights @ v.repeat_interleave(copies, 0)


def layout_of(scheme: str, mask: MaskArrays, ring: int, block: int) -> TokenLayout:
    """A defined layout, or whole blocks in any order, as the balanced ones have."""
    n_blocks = mask.seq_len // block
    if scheme in ("contiguous", "zigzag"):
        runs = define_runs(scheme, np.array([0, mask.seq_len]), ring)
    else:
        dealt = np.sort(np.random.default_rng(len(scheme)).permutation(n_blocks).reshape(ring, -1), axis=1)
        runs = np.array([(rank, at * block, block) for rank in range(ring) for at in dealt[rank]], np.int32)
    needs = needed_blocks(mask, runs, ring, block)
    return TokenLayout(scheme=scheme, ring_degree=ring, block_size=block, runs=runs, needs=needs)


def cases() -> list[tuple[str, str, str]]:
    """Kind, layout and form of mask. What has been met least comes first, so that a run cut short has met most."""
    left = [
        (kind, scheme, form)
        for number, (kind, (_, _, ring, _)) in enumerate(KINDS.items())
        for place, form in enumerate(FORMS)
        for turn, scheme in enumerate(SCHEMES)
        if (ring > 1 and (turn == (number + place) % 4 or form in ("images", "annotations")))
        or (ring == 1 and scheme == "contiguous")
    ]
    met: dict[Any, int] = {}
    ordered = []
    while left:
        chosen = min(left, key=lambda case: sum(met.get(each, 0) for each in _aspects(case)))
        left.remove(chosen)
        ordered.append(chosen)
        for each in _aspects(chosen):
            met[each] = met.get(each, 0) + 1
    return ordered


def _aspects(case: tuple[str, str, str]) -> list[Any]:
    kind, scheme, form = case
    return [kind, scheme, form, (kind, scheme), (kind, form)]


def attention(given: Given, head: dict[str, Any], dtype_name: str) -> Table:
    """Compares attention in one dtype."""
    small = given.small
    seq_len, width, block = (256, 16, 16) if small else (4096, 64 if dtype_name == "float32" else 128, 64)
    head = head | {"dtype": dtype_name, "seq_len": seq_len, "head_dim": width}
    columns = ["kind", "layout", "mask", "out", "dq", "dk", "dv", "dsinks", "dup", "s", "verdict"]
    table = Table(given.out / f"attention_exact_{dtype_name}.json", columns, head)
    arrays, dtype = masks(seq_len), getattr(torch, dtype_name)
    forms = given.chosen(FORMS)
    chosen = [case for case in cases() if case[2] in forms]
    for number, (kind, scheme, form) in enumerate(chosen[: 9 if small else None]):
        if given.over:
            break
        with table.row(kind=kind, layout=scheme, mask=form) as row:
            name, settings = FORMS[form]
            drawn, whole = draw(settings, seq_len, width, number)
            tensors = [x.to(given.device, dtype) for x in drawn]
            whole = {of: x.to(given.device, dtype) for of, x in whole.items()}
            window = int(settings["window"] * seq_len / 16) if "window" in settings else None
            layout = layout_of(scheme, arrays[name], KINDS[kind][2], block)
            found = _on_ranks(given, kind, layout, arrays[name], window, settings.get("softcap"), tensors, whole)
            exact = [x.double().requires_grad_() for x in (*tensors[:3], *whole.values())]
            pairs = torch.from_numpy(seen(arrays[name], window)).to(given.device)
            right = right_of(exact[:3], dict(zip(whole, exact[3:], strict=True)), pairs, settings.get("softcap"))
            rights = [right, *torch.autograd.grad(right, exact, tensors[3].double())]
            named = ("out", "dq", "dk", "dv", *(f"d{of}" for of in whole))
            errors = {of: common.apart(a, b) for of, a, b in zip(named, found, rights, strict=True)}
            limits = {of: LIMITS[dtype_name] * (4 if of in ("dsinks", "dup") else 1) for of in errors}
            row.update(errors)
            row["verdict"] = "ok" if all(errors[of] <= limits[of] for of in errors) else "APART"
    from torch._dynamo.utils import counters

    table.head |= {"failed": table.red, "graphs": counters["stats"]["unique_graphs"]}
    return table


def _on_ranks(
    given: Given,
    kind: str,
    layout: TokenLayout,
    arrays: MaskArrays,
    window: int | None,
    softcap: float | None,
    tensors: list[Tensor],
    whole: dict[str, Tensor],
) -> list[Tensor]:
    """Output and gradients of the whole pack, each rank's part by the trainer's own attention."""
    of_bind, ulysses, ring, options = KINDS[kind]
    kernel: Any = MainThreadKernel(flex.Flex(attention=common.flex_for(given.device), softcap=softcap))
    if given.plant == "mask":
        arrays = MaskArrays(
            doc_ids=np.roll(arrays.doc_ids, 1), branch_ids=arrays.branch_ids, group_ids=np.roll(arrays.group_ids, 1)
        )
        layout = layout_of(layout.scheme, arrays, ring, layout.block_size)
    mask = MaskTensors.from_arrays(arrays).to(given.device).within(window)

    def on_rank(cp: ContextParallel) -> tuple[Tensor, ...]:
        mine = torch.from_numpy(
            rank_positions(
                layout.runs,
                ring_rank=cp.ring_rank,
                ulysses_degree=cp.ulysses_degree,
                ulysses_rank=cp.ulysses_rank,
            )
        ).to(given.device)
        attend = bind(of_bind, layout, mask, cp, kernel=kernel, **options)
        inputs = [x[:, mine].clone().requires_grad_() for x in tensors[:3]]
        own = {of: x.clone().requires_grad_() for of, x in whole.items()}
        out = attend(*inputs, **own)
        if given.plant == "scale":
            out = out * 1.01
        dout = tensors[3][:, mine] * (given.plant != "rank" or cp.cp_rank > 0)
        grads = torch.autograd.grad(out, [*inputs, *own.values()], dout)
        return mine, out.detach(), *grads

    found = run_ranks(ulysses, ring, on_rank)
    order = torch.argsort(torch.cat([each[0] for each in found]))
    joined = [torch.cat([each[part] for each in found], 1)[:, order] for part in range(1, 5)]
    sums = [torch.stack(each).sum(0) for each in zip(*([x.double() for x in each[5:]] for each in found), strict=True)]
    return [*joined, *sums]


def encoders(given: Given, table: Table) -> None:
    """Encoders' attention among images of different sizes, one by one in float64."""
    sides = [4, 6, 6, 3] if given.small else [34, 64, 64, 20, 27, 64, 9]
    sizes = [side * side for side in sides]
    edges = torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int32)
    for width in (64, 72, 80):
        for dtype_name in ("bfloat16", "float32"):
            with table.row(model=f"encoder, heads of {width}", how=dtype_name) as row:
                rng, dtype = torch.Generator().manual_seed(width), getattr(torch, dtype_name)
                drawn = [torch.randn(4, sum(sizes), width, generator=rng).to(dtype) for _ in range(4)]
                inputs = [x.to(given.device).requires_grad_() for x in drawn[:3]]
                named = {"cu_seq_lens_q": edges.to(given.device), "max_length_q": max(sizes), "edges": edges}
                unit: Any = None  # the interface passes a module, which is not read
                out, _ = encoder_attention(unit, *(x[None] for x in inputs), None, scaling=width**-0.5, **named)
                found = [
                    out[0].transpose(0, 1),
                    *torch.autograd.grad(out, inputs, drawn[3].to(given.device).transpose(0, 1)[None]),
                ]
                exact = [x.double().requires_grad_() for x in drawn[:3]]
                parts = zip(*(x.split(sizes, 1) for x in exact), strict=True)
                right = torch.cat([torch.softmax(q @ k.mT * width**-0.5, -1) @ v for q, k, v in parts], 1)
                rights = [right, *torch.autograd.grad(right, exact, drawn[3].double())]
                errors = [common.apart(a, b) for a, b in zip(found, rights, strict=True)]
                row |= {"loss apart": errors[0], "gradient apart": max(errors[1:])}
                row["verdict"] = "ok" if max(errors) <= LIMITS[dtype_name] else "APART"


def step_of(
    folder: Path, dtype: torch.dtype, device: str, packs: int, *, backend: str = ""
) -> Iterator[tuple[float, Tensor]]:
    """The loss and the whole gradient of each pack."""
    packed = PackedModel(load_model(folder / "model", dtype=dtype))
    if backend:
        compile_blocks(packed.inner, backend=backend)
    packed.to(device)
    for batch in islice(PackedDataset(folder / "dataset"), packs):
        packed.zero_grad()
        loss = packed(batch, ContextParallel(), attention="gather")
        loss.backward()
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in packed.parameters()]
        yield float(loss.detach()), torch.cat([each.flatten().double().cpu() for each in grads])


def models(given: Given, table: Table) -> None:
    """A step of the tiny model of each family."""
    backend = "aot_eager" if given.small else "inductor"
    for folder in sorted((given.data / "families").iterdir(), key=lambda each: (each.name not in COMPILED, each.name)):
        if given.over:
            break
        by_experts = folder.name in ("gpt_oss", "qwen3_next")  # which transformers computes in no float64
        rights: list[tuple[float, Tensor]] = []
        with table.row(model=folder.name, how="float64, CPU") as row:
            exact = torch.float32 if by_experts else torch.float64
            rights = list(step_of(folder, exact, "cpu", 1 if given.small else 2))
            row["verdict"] = "ok"
        for how, made_by in (("float32", ""), ("float32, compiled", backend), ("bfloat16", "")):
            if not rights or (made_by and folder.name not in COMPILED):
                continue
            with table.row(model=folder.name, how=how) as row:
                dtype = how.partition(",")[0]
                found = list(step_of(folder, getattr(torch, dtype), given.device, len(rights), backend=made_by))
                pairs = list(zip(found, rights, strict=True))
                row["loss apart"] = max(abs(a[0] - b[0]) / abs(b[0]) for a, b in pairs)
                row["norm apart"] = max(abs(float(a[1].norm() / b[1].norm()) - 1) for a, b in pairs)
                row["gradient apart"] = max(common.apart(a[1], b[1]) for a, b in pairs)
                limit = STEP_LIMITS.get(f"{dtype} {folder.name.partition('-')[0]}", STEP_LIMITS[dtype])
                worst = max(row[f"{of} apart"] for of in ("loss", "norm", "gradient"))
                row["verdict"] = "ok" if worst <= limit else "APART"


def run(given: Given) -> int:
    """Red rows of all tables."""
    common.exact_products()
    head = common.machine(given.device)
    torch.manual_seed(0)
    # One process meets more heads, masks and dtypes than a model has; to forget graphs would be to compile them again.
    with mock.patch.object(flex, "MOST_COMPILATIONS", 512):
        wanted = given.chosen(TABLES)
        share, ends = (given.ends - common.time.monotonic()) / len(wanted), given.ends
        tables = []
        for number, dtype in enumerate(name for name in wanted if name in LIMITS):
            given.ends = ends - (len(wanted) - 1 - number) * share
            tables.append(attention(given, head, dtype))
            if given.plant:
                return tables[0].red
        given.ends = ends
        if "models" not in wanted:
            return sum(table.red for table in tables)
        columns = ["model", "how", "loss apart", "norm apart", "gradient apart", "s", "verdict"]
        of_models = Table(given.out / "models_exact.json", columns, head)
        encoders(given, of_models)
        if not given.plant:
            models(given, of_models)
    return sum(table.red for table in (*tables, of_models))
