"""The entry point: ``preshard``, which is also ``python -m preshard``."""

from __future__ import annotations

import sys

EXTRAS = {"serve": "serve", "demo-source": "demo", "demo-model": "demo"}
"""The extra of the package that a command needs; ``pack`` for every other command."""


def main() -> None:
    """Runs the command line. A package that is not installed is one line with the remedy, and exit status 2."""
    try:
        from preshard.packer_service.cli import main as run

        run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "preshard":
            raise
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        remedy = f"pip install 'preshard[{EXTRAS.get(command, 'pack')}]'"
        what = f"preshard {command}".rstrip()
        print(f"preshard: {what} needs the package {error.name}, which is not installed: {remedy}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
