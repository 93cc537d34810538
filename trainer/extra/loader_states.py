"""Positions that states name, checked; those of torchdata's loaders among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from preshard.schemas.errors import ReaderError
from preshard.schemas.files.printed import several
from preshard.trainer.data.order import Stream


def checked(
    state: dict[str, Any], order: Stream, name: Mapping[str, Any], share: dict[str, int] | None
) -> tuple[int, int, int]:
    """Epoch and position that a state names, and the steps that a worker has given from there.

    Args:
        state: what was saved.
        order: the stream of packs.
        name: what the state must agree in.
        share: of the worker that loads it, by which a state names one of several; None outside of workers.

    Raises:
        ReaderError: it is no such state, of something else, or of another worker.
    """
    if share is None and not {"_snapshot", "_sampler_iter_yielded"}.isdisjoint(state):
        state = joined(state, order, name)
    mine = share or {}
    given = {key: value for key, value in state.items() if key in ("worker", "workers", "dp_size")}
    if given != mine:
        raise ReaderError(
            f"state is of {_words(given)}, not of {_words(mine)}: resume with the same num_workers and dp_size, or "
            "load a RankBatch.state, which fits any, before the loader starts its workers"
        )
    numbers = ["epoch", "position", *(["steps"] if given else [])]
    missing = [key for key in (*name, *numbers) if key not in state]
    if missing:
        raise ReaderError(f"state has no {missing[0]}; pass what state_dict() or RankBatch.state returned")
    for key, value in name.items():
        if state[key] != value:
            raise ReaderError(
                f"state is of {key} {state[key]!r}, not {value!r}: open that one, as the position means other "
                "packs here"
            )
    for key in numbers:
        value, most = state[key], order.n_packs if key == "position" else None
        if type(value) is not int or value < 0 or (most is not None and value > most):
            limit = "a whole number from 0" if most is None else f"from 0 to {most}, the dataset's number of packs"
            raise ReaderError(f"state's {key} is {value!r}; it must be {limit}: take a state as it was returned")
    return state["epoch"], state["position"], state["steps"] if given else 0


def _words(share: Mapping[str, Any]) -> str:
    return (
        "worker {worker} of {workers} at dp_size {dp_size}".format(**share) if len(share) == 3 else "all packs so far"
    )


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
