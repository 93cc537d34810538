"""The ways out of the process when the usual one would wait for something that is gone."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from preshard.packer_service.runtime.scratch import remove_scratch_folders

SHOW_CURSOR = "\x1b[?25h"


def exit_at_once(message: str, status: int = 1) -> NoReturn:
    """Ends the process with one line, and removes what it keeps in the folder for temporary files.

    The usual way out waits for threads and for ``atexit`` hooks: Ray's wait for a Ray that is gone, and those of
    pyarrow's filesystems for requests that nobody answers.
    """
    cursor = SHOW_CURSOR if sys.stderr.isatty() else ""  # a moving line of progress hides it
    print(f"{cursor}preshard: {message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    remove_scratch_folders()
    os._exit(status)
