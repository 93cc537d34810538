"""The whole configuration that a dataset was packed with, of which reading takes a few keys."""

from preshard.schemas.dataset.manifest_parts import stored_config

__all__ = ["stored_config"]
