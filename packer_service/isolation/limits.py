"""What a call in the helper process may use before it is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one call; None for no bound. Each value that the call yields starts both times anew.

    The times are not configurable: no intact file that we looked at came near them.
    """

    memory: int | None = 512 << 20
    """Bytes of private memory of the helper process. With the packing process, which holds one pack, below 1 GiB."""

    memory_key: str | None = None
    """The key of the configuration that sets this memory."""

    cpu_seconds: int | None = 120
    """Processor time without a result. Not clock time, by which a good file is slow on a busy or suspended machine."""

    asleep_seconds: int | None = 600
    """Seconds in which the process did nothing, and did not wait for anything that the kernel counts as a disk."""

    tries: int = 2
    """Times that a call is made, each in a new process after a failure, so what ran before cannot be to blame."""

    @property
    def memory_limit(self) -> str:
        """The limit of memory as messages name it."""
        key = f" ({self.memory_key})" if self.memory_key else ""
        return f"{(self.memory or 0) >> 20} MiB{key}"

    @property
    def memory_shown(self) -> str:
        """What a call has, as messages name it."""
        return f"its {self.memory_limit} of memory" if self.memory else "the machine's memory"
