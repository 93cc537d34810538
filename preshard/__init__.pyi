from preshard.packer_service.api.dataset import Dataset
from preshard.packer_service.api.pack import pack as pack

__all__ = ["__version__", "open", "pack"]

__version__: str

open = Dataset
