"""Gemma 3: squares of one size."""

from preshard.trainer.families.family import ModelFamily
from preshard.trainer.families.internvl import encode_tiles, make_tile
from preshard.trainer.families.pictures import cut_tiles, normalise_tiles

MODELS = {"gemma3": ModelFamily(cut=cut_tiles, normalise=normalise_tiles, encode=encode_tiles, stand_in=make_tile)}
