"""Pack video, image and text documents offline into shards from which a context-parallel rank reads only its own part.

The folders ``schemas``, ``packer_service`` and ``trainer`` of the repository are packages of this one, by links.
"""

from preshard.schemas import version

__version__ = version.VERSION

__all__ = ["__version__"]
