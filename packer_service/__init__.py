"""Packs sources of documents into datasets, verifies and reports on them, and serves what it finds."""

if __name__ == "packer_service":  # in a checkout, by the folder's own name
    from preshard.extras import refuse_import

    refuse_import(__name__)
