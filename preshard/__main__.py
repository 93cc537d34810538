"""``python -m preshard`` is the command ``preshard``."""

from preshard.packer_service.__main__ import main

if __name__ == "__main__":
    main()
