"""Families that a model folder can be written for, without what writes it: the command line lists them."""

from preshard.schemas.model.families import FAMILIES as READING_IMAGES

OF_TEXT = "qwen3"
FAMILIES = (OF_TEXT, *READING_IMAGES)
