"""Results of attention that are kept where a block is computed again in the backward pass.

What torch offers for this looks at operators: it sees neither into compiled FlexAttention nor that the exchange before
it can be left out as well, and of a compiled region it would keep the gathered keys too. So attention says itself what
is worth keeping: its output, and what its backward needs besides the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, Self, TypeVar

from torch import Tensor
from torch.utils._pytree import tree_map_only

T = TypeVar("T")


class KeptResults:
    """Results of :func:`once` in one forward of one block. ``forward`` and ``again`` are the contexts of its passes."""

    def __init__(self) -> None:
        results = (
            BlockResults()
        )  # nothing in it points back here: a cycle would keep a block's memory past its backward
        self.forward, self.again = _Pass(results, again=False), _Pass(results, again=True)


class BlockResults:
    """The results themselves, in the order of the calls."""

    def __init__(self) -> None:
        self._results: list[tuple[Any, list[int]]] = []

    def keep(self, result: T) -> T:
        kept = tree_map_only(Tensor, Tensor.detach, result)  # an output's graph holds these contexts, not the reverse
        self._results.append((kept, _versions(kept)))
        return result

    def give(self, place: int) -> Any:
        kept, versions = self._results[place]
        if _versions(kept) != versions:
            raise RuntimeError("an attention output was changed in place, so it cannot be reused: set --recompute full")
        return tree_map_only(Tensor, Tensor.detach, kept)


class _Pass:
    """The forward of a block, or its repetition in the backward pass, perhaps on another thread."""

    def __init__(self, kept: BlockResults, *, again: bool) -> None:
        self.kept, self.again, self.calls = kept, again, 0
        self._before: Token[_Pass | None] | None = None

    def __enter__(self) -> Self:
        self.calls, self._before = 0, _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._before is not None
        _current.reset(self._before)


_current: ContextVar[_Pass | None] = ContextVar("pass", default=None)


def once(compute: Callable[[], T]) -> T:
    """The result of a call; where a block is computed again, what the same call gave in the block's forward.

    Args:
        compute: returns tensors, in any nesting. All ranks of a pack keep or none does, so it may exchange.

    Raises:
        RuntimeError: a tensor was changed in place since.
    """
    now = _current.get()
    if now is None:
        return compute()
    now.calls += 1
    result: T = now.kept.give(now.calls - 1) if now.again else now.kept.keep(compute())
    return result


def _versions(result: Any) -> list[int]:
    found: list[int] = []
    tree_map_only(Tensor, lambda tensor: found.append(tensor._version), result)
    return found
