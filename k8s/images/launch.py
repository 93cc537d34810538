"""torchrun for a container. Its exit status is that of the rank that failed first, where torchrun says 1 for all.

A scheduler can then tell a wrong command, which the trainer refuses with status 2, from a failure that may pass. The
latter end with $RETRY_STATUS, which is 1 unless an operator reserves another status for failures worth another try.
"""

from __future__ import annotations

import os
import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

REFUSED = 2


def exit_status(failed: ChildFailedError) -> int:
    """2 where a rank refused its command; ranks that then lost it ended later."""
    _, first = failed.get_first_failure()
    return REFUSED if first.exitcode == REFUSED else int(os.environ.get("RETRY_STATUS", "1"))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ChildFailedError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(exit_status(error))
