"""Writes the model of a checkpoint as a folder for ``from_pretrained``: ``python -m preshard.export CHECKPOINT``."""

from __future__ import annotations

from collections.abc import Sequence

from preshard.trainer.extras import load_extra


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command. Without the extra ``train``, one line says so.

    Args:
        arguments: as on the command line, which is where they come from by default.

    Raises:
        SystemExit: status 2: something does not fit or cannot be written.
    """
    waiting = load_extra("waiting")
    waiting.begin("loading torch")
    from preshard.trainer.export import main as run

    run(waiting.with_home(arguments))


if __name__ == "__main__":
    main()
