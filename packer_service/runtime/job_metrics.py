"""What can be watched of a running job: its tasks and what they made, as metrics that Ray exports for Prometheus.

Ray puts ``ray_`` in front of every name, and ``_total`` behind a counter. Only Ray's executor makes these; without Ray
nothing is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ray.util.metrics import Counter, Gauge

from preshard.packer_service.runtime.executors import TaskCounts


@cache
def _gauge(name: str, text: str) -> Gauge:
    return Gauge(name, description=text, tag_keys=("task",))


@cache
def _counter(name: str, text: str, *tags: str) -> Counter:
    # Ray forgets what a name counted when it is made a second time in one process
    return Counter(name, description=text, tag_keys=("task", *tags))


class JobMetrics:
    """Metrics of one pipeline, set by the driver as results arrive: a handful of sums for each task.

    Args:
        task: name of the function that the tasks run, which becomes the label ``task``.
        total: number of tasks.
    """

    def __init__(self, task: str, total: int) -> None:
        self.tags = {"task": task}
        self.n_done = 0
        _gauge("preshard_pack_tasks", "Tasks of this run.").set(total, self.tags)
        self._set_done()

    def done(self, result: object) -> None:
        """Counts a task and, where its result says what it made, that too."""
        self.n_done += 1
        self._set_done()
        if isinstance(result, TaskCounts):
            made = {name: number for name, number in result.amounts.items() if name != "rejected"}
            for name, number in made.items():
                self._count(f"preshard_pack_{name}", f"The {name} of finished tasks.", number)
            for code, number in result.rejects.items():
                self._count("preshard_pack_rejects", "Rejected documents by their code.", number, {"code": code})

    def _set_done(self) -> None:
        _gauge("preshard_pack_tasks_done", "Tasks that are finished.").set(self.n_done, self.tags)

    def _count(self, name: str, text: str, number: int, tags: Mapping[str, str] | None = None) -> None:
        if number > 0:  # Ray refuses to count nothing
            _counter(name, text, *(tags or {})).inc(number, {**self.tags, **(tags or {})})
