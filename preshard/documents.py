"""Documents as a form of your own may return them: ``preshard pack --form mypackage.rows:document``."""

from preshard.packer_service.ingest.document import Document, Medium, Message

__all__ = ["Document", "Medium", "Message"]
