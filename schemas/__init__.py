"""The contract between packer and trainer: what is on disk, as types. Imports nothing else of preshard."""

VERSION = "0.3.0"
"""The version of preshard. Part of what decides a dataset's bytes."""

if __name__ == "schemas":  # in a checkout, by the folder's own name
    from preshard.extras import refuse_import

    refuse_import(__name__)
