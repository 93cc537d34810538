"""A pack as the pictures of ``layouts.md`` need it, read from a dataset by range, and the colours of its documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int8, Int64
from matplotlib.patches import Patch

from preshard.schemas.config import stored_config
from preshard.schemas.layout import SCHEMES, TokenLayout, layout_name
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.data.files import DatasetFiles
from preshard.trainer.data.split import read_header

KINDS = {"padding": "#dddddd", "text": "#56b4e9", "images": "#e69f00", "video": "#009e73"}
"""Kinds of document and their colours: Okabe and Ito's palette, which colour-blind readers tell apart."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """What the pictures need of a pack.

    Attributes:
        name: the pack, for titles.
        mask: its mask.
        edges: edges of its documents and of the padding between and behind them, in tokens.
        kinds: index in ``KINDS`` of each token's document.
        layouts: its layouts at the ring degree and of the schemes drawn, in the order of ``SCHEMES``.
    """

    name: str
    mask: MaskArrays
    edges: Int64[np.ndarray, "edges"]
    kinds: Int8[np.ndarray, "seq"]
    layouts: list[TokenLayout]


def load_pack(dataset: str, pack_id: int, ring_degree: int, schemes: Sequence[str] = SCHEMES) -> Pack:
    """One pack from its header part, read by range as a rank reads it, with its layouts of the schemes.

    Raises:
        PreshardError: no dataset there, or one with a broken file.
        ValueError: no such pack, or no layout of this degree and these schemes; says which there are.
    """
    files = DatasetFiles(dataset)
    places, config = files.packs(), stored_config(files.manifest)
    if not 0 <= pack_id < len(places):
        raise ValueError(f"pack {pack_id} is not there; {dataset} has packs 0 to {len(places) - 1}")
    header = read_header(files, places[pack_id], config, files.manifest.axes)
    files.close()
    seq_len = config.seq_len
    names = [layout_name(scheme, ring_degree) for scheme in SCHEMES if scheme in schemes]
    layouts = [header.layouts[name] for name in names if name in header.layouts]
    if not layouts:
        held = header.layouts.values()
        degrees = ", ".join(map(str, sorted({layout.ring_degree for layout in held})))
        raise ValueError(
            f"no layout of ring degree {ring_degree} among {', '.join(schemes)}; "
            f"the pack has {', '.join(sorted({layout.scheme for layout in held}))} of degrees {degrees}"
        )
    timed = {image.doc_id for image in header.head.images if image.timestamp is not None}
    kinds, edges = np.zeros(seq_len, np.int8), [0, seq_len]
    for span in header.head.documents:
        kind = "text" if not span.n_images else "video" if span.doc_id in timed else "images"
        kinds[span.start : span.start + span.length] = list(KINDS).index(kind)
        edges += [span.start, span.start + span.length]
    return Pack(
        name=f"pack {pack_id}: {seq_len:,} tokens, {len(header.head.documents)} documents",
        mask=header.sequence.mask,
        edges=np.unique(edges).astype(np.int64),
        kinds=kinds,
        layouts=layouts,
    )


def kind_patches(pack: Pack) -> list[Patch]:
    """The legend of the kinds that the pack has."""
    present = set(np.unique(pack.kinds).tolist())
    return [Patch(color=colour, label=kind) for at, (kind, colour) in enumerate(KINDS.items()) if at in present]
