"""The command line. It turns words into calls, and errors into one line and an exit status."""

from preshard.packer_service.cli.run import cli, main

__all__ = ["cli", "main"]
