"""Heads of a rank of the Ulysses axis, and the pieces in which it takes them where exchanges overlap."""

from __future__ import annotations

import math
from dataclasses import dataclass

from preshard.schemas.errors import ConfigError
from preshard.schemas.files.printed import several

PIECES = 2
"""Each piece is one more call of the kernel, with the same mask, at whose end most of a device waits for its longest
row. With two, half of the exchange can hide."""


def repeated_kv_heads(num_kv_heads: int, degree: int) -> int:
    """Key heads that are sent, counting the copies: the fewest that divide evenly among the ranks."""
    return math.lcm(num_kv_heads, degree)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some of a rank's heads: query heads, and the key heads that they read."""

    queries: slice
    keys: slice
    first_of_keys: bool
    last_of_keys: bool


def list_pieces(num_heads: int, num_kv_heads: int, degree: int) -> list[Piece]:
    """Pieces of a rank's heads: by whole key heads where it has several, else by query heads that share one.

    Raises:
        ConfigError: a rank has a single query head.
    """
    heads, kv_heads = num_heads // degree, repeated_kv_heads(num_kv_heads, degree) // degree
    if heads < PIECES:
        raise ConfigError(
            f"--overlap computes a rank's heads in {PIECES} pieces; {several(num_heads, 'head')} on "
            f"{several(degree, 'rank')} are {heads} on each: take a Ulysses degree of at most "
            f"{num_heads // PIECES}, or leave the option out"
        )
    shared = heads // kv_heads
    if kv_heads > 1:
        cut = -(-kv_heads // PIECES)
        parts = [slice(0, cut), slice(cut, kv_heads)]
        return [
            Piece(queries=slice(p.start * shared, p.stop * shared), keys=p, first_of_keys=True, last_of_keys=True)
            for p in parts
        ]
    cut, only = -(-heads // PIECES), slice(0, 1)
    return [
        Piece(queries=slice(0, cut), keys=only, first_of_keys=True, last_of_keys=False),
        Piece(queries=slice(cut, heads), keys=only, first_of_keys=False, last_of_keys=True),
    ]
