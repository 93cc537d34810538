"""Packs sources of documents into datasets, verifies and reports on them, and serves what it finds."""

if __name__ == "packer_service":  # in a checkout, by the folder's own name
    from preshard.checkout import alias

    alias(__name__)
