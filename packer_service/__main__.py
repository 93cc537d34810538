"""The entry point: ``preshard``, which is also ``python -m preshard``."""

from __future__ import annotations

import sys

from preshard.extras import needed

EXTRAS = {"serve": "serve", "demo-source": "demo", "demo-model": "demo"}
"""The extra of the package that a command needs; ``pack`` for every other command."""


def main() -> None:
    """Runs the command line. A package that is not installed is one line with the remedy, and exit status 2."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    with needed("preshard", f"preshard {command}" if command else "the command", EXTRAS.get(command, "pack")):
        from preshard.packer_service.cli import main as run

        run()


if __name__ == "__main__":
    sys.modules.pop("packer_service", None)  # whoever imports it by its folder's name is refused again
    main()
