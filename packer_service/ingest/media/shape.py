"""What probing an image or a video finds, before any pixel is decoded."""

from packer_service.ingest.document import Medium
from packer_service.ingest.media.grid import ImageGrid
from packer_service.ingest.media.video import VideoFrames

MediumShape = ImageGrid | VideoFrames
"""How an image is cut into crops, or which frames of a video are taken."""

ProbedMedium = tuple[Medium, MediumShape]
"""An image or video with its shape: all that decoding needs."""
