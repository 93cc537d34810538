"""What a call in the helper process may use before it is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one call. A value that the call hands over starts both times anew.

    They are no configuration: what stays within them is packed the same whatever they are, and no whole file that was
    looked at came near them.
    """

    memory: int = 512 << 20
    """Bytes of private memory of the helper process. With the packing process, which holds one pack, below 1 GiB."""

    cpu_seconds: int = 120
    """Processor time without a result. Not the clock's time: on a loaded or suspended machine a good file is slow."""

    asleep_seconds: int = 600
    """Time in which the process did nothing and waited for nothing that the kernel counts as a disk."""

    tries: int = 2
    """Calls in all, each after a failure in a new process: the last says nothing about what ran before it."""
