"""What a reader must know of a dataset's configuration, and whether the dataset was planned for a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.errors import ManifestInvalid, ReaderError
from schemas.manifest import MANIFEST, Manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSettings:
    """Keys of the packer's configuration, under the same names, and the tokenizer's size.

    Attributes:
        seq_len: tokens of a pack.
        layouts: schemes that every sample holds.
        ring_degrees: ring degrees that every scheme is laid out for.
        cp_sizes: CP sizes that every sample has image boundaries for.
        image_size: side of a crop in pixels.
        image_format: ``jpeg`` or ``png``.
        patch_size: side of a patch of the vision encoder in pixels.
        pool_size: patches along a side of a pooling window.
        block_size: tokens of a block of the layouts' ``needs``.
        window: packs of a group of nearly equal cost.
        tokenizer: what the tokenizer is called.
        vocab_size: one more than the largest token id.
    """

    seq_len: int
    layouts: tuple[str, ...]
    ring_degrees: tuple[int, ...]
    cp_sizes: tuple[int, ...]
    image_size: int
    image_format: str
    patch_size: int
    pool_size: int
    block_size: int
    window: int
    tokenizer: str
    vocab_size: int

    @classmethod
    def of(cls, manifest: Manifest) -> DatasetSettings:
        """Raises ManifestInvalid: a key is missing, or not of its type."""
        config = manifest.config
        return cls(
            seq_len=_value(config, "seq_len", int),
            layouts=tuple(_value(config, "layouts", list)),
            ring_degrees=tuple(_value(config, "ring_degrees", list)),
            cp_sizes=tuple(_value(config, "cp_sizes", list)),
            image_size=_value(config, "vision.image_size", int),
            image_format=_value(config, "image_format", str),
            patch_size=_value(config, "vision.patch_size", int),
            pool_size=_value(config, "vision.pool_size", int),
            block_size=_value(config, "block_size", int),
            window=_value(config, "order.window", int),
            tokenizer=manifest.tokenizer.name,
            vocab_size=manifest.tokenizer.vocab_size,
        )

    def check_split(self, *, layout: str, ring_degree: int, ulysses_degree: int) -> None:
        """Whether every sample holds what a rank of this split needs.

        Raises:
            ReaderError: it does not, or a slice does not divide; names what there is.
        """
        cp_size = ulysses_degree * ring_degree
        for what, value, planned, key in (
            ("layout", layout, self.layouts, "layouts"),
            ("ring_degree", ring_degree, self.ring_degrees, "ring_degrees"),
            ("ulysses_degree * ring_degree", cp_size, self.cp_sizes, "cp_sizes"),
        ):
            if value not in planned:
                raise ReaderError(
                    f"{what} is {value!r}; the dataset was packed for {', '.join(map(str, planned))}: "
                    f"take one of these, or pack with {value!r} among {key}"
                )
        if self.seq_len // ring_degree % ulysses_degree:
            slice_len = self.seq_len // ring_degree
            raise ReaderError(
                f"ulysses_degree is {ulysses_degree}; a slice of {slice_len} tokens does not divide by it"
            )


def _value(config: dict[str, Any], path: str, kind: type) -> Any:
    at: Any = config
    for name in path.split("."):
        at = at.get(name) if isinstance(at, dict) else None
    if not isinstance(at, kind):
        raise ManifestInvalid(MANIFEST, f"config.{path} is {at!r}, not {kind.__name__}")
    return at
