"""The trainer's command: ``torchrun --nproc-per-node N -m preshard.train``. One process needs no torchrun."""

from __future__ import annotations

from collections.abc import Sequence

from preshard.trainer.extras import load_extra


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command, then ends the process. Without the extra ``train``, one line says so.

    Args:
        arguments: as on the command line, which is where they come from by default.

    Raises:
        SystemExit: always. Status 0: done; 1: failed or stopped; 2: something does not fit, found before the first
            step.
    """
    waiting = load_extra("waiting")
    waiting.begin("loading torch")
    from preshard.trainer.train import main as run

    run(waiting.with_home(arguments))


if __name__ == "__main__":
    main()
