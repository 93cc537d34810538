"""What probing an image or a video tells, before any pixel is decoded."""

from packer_service.ingest.media.image import ImageCrops
from packer_service.ingest.media.video import VideoFrames

MediaShape = ImageCrops | VideoFrames
"""How many crops an image has, or which frames of a video are taken."""
