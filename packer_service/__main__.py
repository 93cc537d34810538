"""``python -m packer_service`` is ``preshard``."""

from packer_service.cli import main

main()
