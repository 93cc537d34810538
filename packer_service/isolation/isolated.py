"""Calls in a helper process that is kept, and replaced when a call has broken it."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, TypeVar

from preshard.packer_service.isolation.limits import Limits
from preshard.packer_service.isolation.process import CallFailedError, HelperProcess, KilledError

T = TypeVar("T")


class Isolated:
    """Calls functions in a helper process, started with the first call and kept for the next ones.

    One call at a time: other threads wait. The process ends with the caller, however that ends.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._helper: HelperProcess | None = None
        self._lock = Lock()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forked)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """The result of a module's function in a list or, if that is an iterator, all of its values in their order.

        A call that breaks the process is tried again in a new one, from the beginning.

        Raises:
            CallFailedError, KilledError, PreshardError, OSError: as in :meth:`gather`.
        """
        return self.gather(list, function, *args, **kwargs)

    def gather(self, keep: Callable[[Iterator[Any]], T], function: Callable[..., Any], *args: Any, **kwargs: Any) -> T:
        """What ``keep`` makes of the values, which it is given one at a time as they come.

        A call that breaks the process is tried again in a new one, and ``keep`` is called again from the beginning. It
        need not take all values; the process is ended then.

        Raises:
            CallFailedError: it broke every process in which it was tried; the text says how.
            KilledError: the process was ended from outside in every try; an ``OSError``.
            PreshardError, OSError: as the function raised it.
        """
        with self._lock:
            reasons: list[str] = []
            while True:
                try:
                    return self._try(keep, function, *args, **kwargs)
                except KilledError:
                    if len(reasons) + 1 >= self.limits.tries:
                        raise
                    reasons.append("was killed")
                except CallFailedError as error:
                    reasons.append(str(error))
                    if len(reasons) >= self.limits.tries:
                        raise error.rejection or CallFailedError(self._all(reasons)) from None

    def _try(self, keep: Callable[[Iterator[Any]], T], function: Callable[..., Any], *args: Any, **kwargs: Any) -> T:
        helper = self._helper = self._helper or HelperProcess(self.limits)
        try:
            return keep(helper.call(function, *args, **kwargs))
        finally:
            if not helper.is_idle:
                self._end()

    def _all(self, reasons: list[str]) -> str:
        return f"{', then '.join(dict.fromkeys(reasons))} in {len(reasons)} of {self.limits.tries} tries"

    @property
    def pid(self) -> int | None:
        """The helper's process id, None while there is no helper."""
        return None if self._helper is None else self._helper.pid

    def close(self) -> None:
        """Ends the helper; a later call starts another one."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.close()

    def _forked(self) -> None:
        # a copy of this process shares the pipes, and would hold the helper's lifeline open
        self._lock = Lock()
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.forget()
