"""The language model's blocks as ``torch.compile`` would run them, counted instead of compiled.

``torch.compile`` does not trace tensors that are fake already, so its steps are taken here one by one: autograd's graph
of what lies before a block's attention and of what lies after it, cut into forward and backward where fewest bytes are
kept (torch's own partitioner, as Inductor calls it), with Inductor's decompositions. What Inductor fuses has no memory:
there is a kernel for each result that a product or another graph reads. The attention between them is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import traceback
from torch.fx.traceback import preserve_node_meta
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.checkpoint import CheckpointPolicy

from preshard.trainer.attention.latent import value_width
from preshard.trainer.extra import saving as memory
from preshard.trainer.extra.dry_run.device import patched
from preshard.trainer.extra.dry_run.ledger import Ledger, operator_kind
from preshard.trainer.models.interface import PACKED, decoder_layers, packed_attention, register_attention

MOST_SOURCES = 8
"""Inductor stores a result that is made of more tensors (``realize_acc_reads_threshold``)."""


def fuse_blocks(model: Any, ledger: Ledger) -> None:
    """Takes the place of ``compile_blocks``. Blocks without the attention of packs stay as they are."""
    pieces: dict[Any, _Pieces | None] = {}
    kinds: dict[type[nn.Module], type[nn.Module]] = {}

    def fused(kind: type[nn.Module]) -> type[nn.Module]:
        plain: Callable[..., Any] = kind.forward

        def forward(self: nn.Module, *args: Any, **named: Any) -> Any:
            leaves, spec = tree_flatten((args, named))
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            own = _state_of(self)
            key = kind, _settings(self), *map(_form, (*tensors, *own.values())), torch.is_grad_enabled()
            if key not in pieces:
                # what this keeps is not the step's: not for who counts, and not for who computes blocks again
                with _disable_current_modes(), ledger.fake, saved_tensors_hooks(_same, _same):
                    pieces[key] = _Pieces.of(plain, self, list(leaves), spec, ledger)
            found = pieces[key]
            if found is None:
                return plain(self, *args, **named)
            return found(self, tensors, list(own.values()), named)

        return type(kind.__name__, (kind,), {"forward": forward})

    for block in decoder_layers(model):
        kind = type(block)
        block.__class__ = kinds.setdefault(kind, fused(kind))


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _settings(block: nn.Module) -> tuple[Any, ...]:
    """Settings that may tell blocks of a kind from each other, such as a window."""
    plain = (int, float, str, bool, type(None))
    return tuple(
        (path, name, value)
        for path, module in block.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, plain) and name != "layer_idx"
    )


def _state_of(block: nn.Module) -> dict[str, Tensor]:
    """A block's parameters and buffers. A router's bias is one of these, and a trace takes no constants."""
    return {**dict(block.named_parameters()), **dict(block.named_buffers())}


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


def _like(tensor: Tensor) -> Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.requires_grad_(tensor.requires_grad)


class _Reached(Exception):  # noqa: N818 (it is no error)
    """A block's attention has been reached."""

    def __init__(self, module: nn.Module, heads: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        self.module, self.heads, self.named = module, heads, named


class _Pieces:
    """A block before and after its attention, which is that of the submodule of a path."""

    def __init__(self, before: Callable[..., Any], after: Callable[..., Any], path: str, named: dict[str, Any]) -> None:
        self._before, self._after, self._path, self._named = before, after, path, named

    @classmethod
    def of(
        cls, plain: Callable[..., Any], block: nn.Module, leaves: list[Any], spec: Any, ledger: Ledger
    ) -> _Pieces | None:
        """Traces a block; None if it has no attention of packs, or gives it something of its own besides heads."""
        places = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        state = _state_of(block)
        seen: dict[str, Any] = {}
        paths: list[str] = []

        def call(values: Sequence[Tensor], stack: ExitStack) -> Any:
            given = list(leaves)
            for place, value in zip(places, values[: len(places)], strict=True):
                given[place] = value
            own = dict(zip(state, values[len(places) :], strict=True))
            stack.enter_context(_reparametrize_module(block, own))
            args, named = tree_unflatten(given, spec)
            return plain(block, *args, **named)

        def before(stack: ExitStack, *values: Tensor) -> tuple[Tensor, ...] | None:
            with _attention(_reach):
                try:
                    call(values, stack)
                except _Reached as reached:
                    seen.update(reached.named)
                    paths.append(next(path for path, each in block.named_modules() if each is reached.module))
                    return reached.heads
            return None

        def after(stack: ExitStack, out: Tensor, *values: Tensor) -> Any:
            with _attention(lambda *_args, **_named: (out, None)):
                return call(values, stack)

        # traces keep what was traced, so it is nothing of the step's
        values = [_like(each) for each in (*(leaves[place] for place in places), *state.values())]
        with ExitStack() as stack:  # not traced: a block with a state sends, which no trace follows
            if before(stack, *values) is None:
                return None
        first = _traced(before, ledger, values)
        of_block = tree_unflatten(leaves, spec)[1]
        if any(isinstance(value, Tensor) and name not in of_block for name, value in seen.items()):
            return None
        q, k, v = first(*values)
        attention: Any = block.get_submodule(paths[0])
        up = attention.latents_up(k) if hasattr(attention, "latents_up") else None
        width = value_width(q, v, up)
        out = q.new_empty(*q.shape[:-1], width).transpose(1, 2).contiguous().requires_grad_(q.requires_grad)
        own = {name: None if name in of_block else value for name, value in seen.items()}
        pieces = cls(first, _traced(after, ledger, [out, *values]), paths[0], own)
        leaves.clear()
        seen.clear()
        return pieces

    def __call__(self, block: nn.Module, tensors: list[Tensor], state: list[Tensor], named: dict[str, Any]) -> Any:
        heads = self._before(*tensors, *state)
        current = {name: named.get(name, value) for name, value in self._named.items()}
        out, _ = packed_attention(block.get_submodule(self._path), *heads, None, **current)
        del heads
        return self._after(out, *tensors, *state)


def _reach(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, attention_mask: Any = None, **named: Any) -> Any:  # noqa: ARG001
    raise _Reached(module, (q, k, v), named)


@contextmanager
def _attention(replaced: Callable[..., Any]) -> Iterator[None]:
    """Replaces the function that blocks call as the attention of packs."""
    interface = register_attention().AttentionInterface
    interface.register(PACKED, replaced)
    try:
        yield
    finally:
        interface.register(PACKED, packed_attention)


def _traced(piece: Callable[..., Any], ledger: Ledger, values: list[Tensor]) -> Callable[..., Any]:
    """A piece whose forward and backward are counted graphs. What it takes for a while is given back at once."""
    counted = partial(_counted, ledger)
    with ExitStack() as stack, patched(memory, memory.checkpoint.__name__, _computed_again):
        found: Callable[..., Any] = aot_function(
            partial(piece, stack), counted, counted, min_cut_rematerialization_partition, select_decomp_table()
        )
        found(*values)
    return found


def _computed_again(call: Callable[..., Any], *args: Any, **_named: Any) -> Any:
    """Marks what a checkpoint inside of a block computes, as ``torch.compile`` does for the partitioner."""
    with preserve_node_meta():
        before = dict(traceback.current_meta)
        marks = {"recompute": CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": before.get("ac_graph_id", 0) + 1}
        traceback.current_meta.update(marks)
        try:
            return call(*args)
        finally:
            traceback.current_meta.clear()
            traceback.current_meta.update(before)


def _counted(ledger: Ledger, graph: fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    counted = _Counted(graph, ledger)

    def run(values: list[Any]) -> Any:
        return counted.run(values)

    run._boxed_call = True  # type: ignore[attr-defined] # it may let go of its inputs
    return run


class _Fused:
    """A result that is in no memory, and the memory that it is made of."""

    def __init__(self, sources: dict[int, Tensor]) -> None:
        self.sources = sources


class _Counted:
    """Runs a graph: products and views as they are, all else as Inductor would fuse it."""

    def __init__(self, graph: fx.GraphModule, ledger: Ledger) -> None:
        self._ledger, self._nodes = ledger, list(graph.graph.nodes)
        self._stored = self._list_stored()
        self._forms = {node: _forms_of_results(node) for node in self._nodes if node.op == "call_function"}
        self._dies: dict[fx.Node, list[fx.Node]] = {}
        seen: set[fx.Node] = set()
        for node in reversed(self._nodes):
            self._dies[node] = [each for each in node.all_input_nodes if each not in seen]
            seen.update(node.all_input_nodes)

    def _list_stored(self) -> set[fx.Node]:
        """Nodes whose results are in memory: what products and other graphs read, by views too."""
        stored: set[fx.Node] = set()
        for node in reversed(self._nodes):
            keeps = node.op == "output" or (node.op == "call_function" and _kind(node) == "products")
            if keeps or (node in stored and _kind(node) == "view"):
                stored.update(node.all_input_nodes)
        return stored

    def run(self, values: list[Any]) -> Any:
        given = iter(list(values))
        values.clear()
        held: dict[fx.Node, Any] = {}
        for node in self._nodes:
            if node.op == "placeholder":
                held[node] = next(given)
                continue
            if node.op == "output":
                return fx.node.map_arg(node.args[0], lambda each: held[each])
            held[node] = self._result(node, held)
            for dead in self._dies[node]:
                held.pop(dead, None)
        raise AssertionError("a graph without an output")

    def _result(self, node: fx.Node, held: dict[fx.Node, Any]) -> Any:
        inputs, kind = [held[each] for each in node.all_input_nodes], _kind(node)
        if kind == "products" or not any(isinstance(each, Tensor | _Fused) for each in inputs):
            return self._call(node, held)
        if kind == "view" and not any(isinstance(each, _Fused) for each in inputs):
            return self._call(node, held)
        sources: dict[int, Tensor] = {}
        for each in inputs:
            if isinstance(each, _Fused):
                sources |= each.sources
            elif isinstance(each, Tensor):
                sources[each.untyped_storage()._cdata] = each
        if kind == "view" or (node not in self._stored and len(sources) <= MOST_SOURCES):
            return _Fused(sources)
        read, forms = sum(each.nbytes for each in sources.values()), self._forms[node]
        for form in forms:
            size = form["dtype"].itemsize * math.prod(form["size"])
            reused = next((dead for dead in self._dies[node] if _can_hold(dead, held.get(dead), size)), None)
            held.pop(reused, None)  # type: ignore[arg-type]
        del inputs, each
        sources.clear()
        made = [torch.empty_strided(**form) for form in forms]
        self._ledger.note_fused(read + sum(each.nbytes for each in made))
        return made if isinstance(node.meta["val"], tuple | list) else made[0]

    def _call(self, node: fx.Node, held: dict[fx.Node, Any]) -> Any:
        args, named = fx.node.map_arg((node.args, node.kwargs), lambda each: held[each])
        target: Any = node.target
        return target(*args, **named)


def _forms_of_results(node: fx.Node) -> list[dict[str, Any]]:
    """Arguments of ``empty_strided`` for each tensor that an operator gives: several for a router's ``topk``."""
    return [
        {"size": made.shape, "stride": made.stride(), "dtype": made.dtype, "device": made.device}
        for made in tree_leaves(node.meta.get("val"))
        if isinstance(made, Tensor)
    ]


def _can_hold(node: fx.Node, value: Any, size: int) -> bool:
    """Whether a result was made for the next kernel alone, and is of the size of what that makes."""
    return node.op != "placeholder" and isinstance(value, Tensor) and value.nbytes == size


def _kind(node: fx.Node) -> str:
    """``products``, ``view`` or ``other``."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return "view" if node.op == "call_function" else "other"
    if any(each.alias_info is not None and not each.alias_info.is_write for each in node.target._schema.returns):
        return "view"
    return "products" if operator_kind(node.target) != "other" else "other"
