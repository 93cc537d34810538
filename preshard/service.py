"""The inspection service as an ASGI application, for a program of your own; the command is ``preshard serve``."""

from preshard.packer_service.http.app import create_app
from preshard.packer_service.http.settings import ServiceSettings

__all__ = ["ServiceSettings", "create_app"]
