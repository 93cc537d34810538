"""Positions from the whole states of torchdata's loaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from preshard.schemas.errors import ReaderError
from preshard.schemas.files.printed import several
from preshard.trainer.data.order import Stream


def joined(state: dict[str, Any], order: Stream, name: Mapping[str, Any]) -> dict[str, Any]:
    """A position of all workers from the state of a ``StatefulDataLoader`` (torchdata 0.11); others as they are.

    Workers take turns, so what they have given is known from how many steps that is.
    """
    if "_snapshot" not in state:
        return dict(state["dataset_state"])
    later = state["_steps_since_snapshot"]
    workers = [each["dataset_state"] for each in state["_snapshot"]["_worker_snapshots"].values()]
    if len(workers) == 1:
        if later:
            raise ReaderError(
                f"state is {several(later, 'step')} behind its loader: save with snapshot_every_n_steps=1, or "
                "resume with the same num_workers and dp_size by the loader's own load_state_dict"
            )
        return dict(workers[0])
    dp_size, at = workers[0]["dp_size"], (workers[0]["epoch"], workers[0]["position"])
    if not 1 <= dp_size <= order.n_packs:
        raise ReaderError(f"state's dp_size is {dp_size!r}; it must be from 1 to {order.n_packs} packs")
    steps = later + sum(each["steps"] for each in workers)
    while steps > (left := order.steps_left(at[1], dp_size)):
        steps, at = steps - left, order.next_pass(at[0], at[1] + left * dp_size)
    epoch, position = order.normal(at[0], at[1] + steps * dp_size)
    return {each: workers[0][each] for each in name} | {"epoch": epoch, "position": position}
