"""The contract between packer and trainer: what is on disk, as types. Imports nothing else of preshard."""

if __name__ == "schemas":  # in a checkout, by the folder's own name
    from preshard.checkout import alias

    alias(__name__)
