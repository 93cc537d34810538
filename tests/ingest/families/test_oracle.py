"""Each family beside ``transformers``: tokens, positions, mask, grids and pixels, equal to the last bit."""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from generated.pictures import FORMATS, MODES, is_scaled
from generated.pictures import draw as draw_picture
from model_oracle import Document, Made, Oracle, Refused, differences, takes
from photographs import photographs, write_clips
from PIL import Image, ImageOps

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.folder import load_family
from preshard.packer_service.ingest.families.glm import GlmFamily
from preshard.packer_service.ingest.families.qwen_sizes import Qwen3VLFamily
from preshard.schemas.errors import ConfigError
from preshard.schemas.model.families import FAMILIES

pytestmark = pytest.mark.process  # importing transformers takes as long as many tests


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


@cache
def pictures() -> list[tuple[str, Medium]]:
    """Photographs by their names; made by the worker that runs these tests, while all collect them."""
    return [(name, Medium(kind="image", data=data)) for name, data in photographs(5, seed=18)]


@cache
def drawn_pictures(per_kind: int) -> list[tuple[str, bytes, Image.Image]]:
    """Pictures, so many of each mode and of each format: what each is, its file, and what Pillow shows upright."""
    found, counts = [], Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in count():
            case = draw_picture(seed, Path(folder))
            data = case.files[0].read_bytes()
            opened = Image.open(io.BytesIO(data))
            kinds = case.kind.split(", ")
            if getattr(opened, "n_frames", 1) == 1 and any(counts[kind] < per_kind for kind in kinds):
                counts.update(kinds)
                found.append((f"{seed}: {case.kind}", data, ImageOps.exif_transpose(opened)))
            if len(counts) == len(MODES) + len(FORMATS) and min(counts.values()) >= per_kind:
                return found
    raise AssertionError("seeds do not end")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Clips of 1, 2, 3, 5 and 8 frames; the third at uneven times, the last one turned."""
    return write_clips(tmp_path_factory.mktemp("clips"), 5)


def test_photographs_become_what_the_processor_makes_of_them(oracle: Oracle) -> None:
    """Fails when a size, a mode of pixels, a filter or the order of patches is not the processor's."""
    kinds = set()
    for name, medium in pictures():
        ours, theirs = oracle.ours(Document([medium])), oracle.theirs(Document([medium]))
        assert differences(ours, theirs) == [], name
        kinds.add(type(theirs))
    assert Made in kinds


def test_photographs_become_what_the_processor_on_pillow_makes_of_them(oracle: Oracle) -> None:
    """Fails when ``images.backend: pil`` gives pixels of torchvision's filter or normalisation, or is followed where
    there is no such processor."""
    if oracle.family.model_type in ("kimi_k25", "molmo2"):
        with pytest.raises(ConfigError, match=r"images.backend: 'pil' is not available: \w+ has only"):
            load_family(str(oracle.folder), "pil")
        return
    pillow = Oracle(oracle.folder, "pil")
    pillow.model = oracle.model
    n_other = n_made = 0
    for name, medium in pictures()[-4:]:
        ours, theirs = pillow.ours(Document([medium])), pillow.theirs(Document([medium]))
        assert differences(ours, theirs) == [], name
        n_other += bool(differences(ours, oracle.ours(Document([medium]))))
        n_made += isinstance(theirs, Made)
    assert n_other == n_made > 2


@pytest.mark.parametrize("per_kind", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_pictures_of_every_mode_and_format_become_what_the_processor_makes_of_them(
    oracle: Oracle, per_kind: int
) -> None:
    """Fails when a mode of pixels, transparency or a place of the orientation gives the model another picture than the
    processor makes of what Pillow opens and turns; only greys that do not fit 8 bits do, as they are scaled here."""
    pictures = drawn_pictures(per_kind)
    if per_kind == 1:  # a few for each family, and all of them together
        pictures = pictures[sorted(FAMILIES).index(oracle.family.model_type) % 6 :: 6]
    wrong, scaled = list[tuple[str, list[str]]](), list[bool]()
    for name, data, upright in pictures:
        document = Document([Medium(kind="image", data=data)])
        found = differences(oracle.ours(document), oracle.theirs(document))
        if is_scaled(upright):
            scaled.append(bool(found))
        elif found:
            wrong.append((name, found))
    assert not wrong
    assert len(pictures) > len(scaled)
    assert per_kind == 1 or any(scaled)


def test_clips_become_what_the_processor_makes_of_them(oracle: Oracle, clips: list[Path]) -> None:
    """Fails when a time stamp, a patch that lacks a frame, a temporal position or a filter is not the processor's."""
    refused = 0
    for path in clips:
        document = Document([Medium(kind="video", uri=path.name)], folder=str(path.parent))
        ours, theirs = oracle.ours(document), oracle.theirs(document)
        assert differences(ours, theirs) == [], path.name
        refused += isinstance(theirs, Refused)
    too_few = isinstance(oracle.family, Qwen3VLFamily | GlmFamily)
    assert refused == (too_few if takes(oracle.family, "video") else len(clips)), "one frame is too few for some"


def test_a_list_of_frames_becomes_what_the_processor_makes_of_it(oracle: Oracle) -> None:
    """Fails when frames given as images are scaled, timed or paired otherwise than those of a file."""
    if not takes(oracle.family, "video"):
        return
    drawn = np.random.default_rng(0)
    for n, fps in ((2, 2.0), (5, 0.7)):
        frames = tuple(Medium(kind="image", data=png(drawn.integers(0, 256, (90, 130, 3)))) for _ in range(n))
        document = Document([Medium(kind="video", frames=frames, fps=fps)])
        ours, theirs = oracle.ours(document), oracle.theirs(document)
        assert isinstance(theirs, Made)
        assert differences(ours, theirs) == [], (n, fps)


@pytest.mark.parametrize(
    "limits", [{"min_pixels": 300_000}, {"max_pixels": 5_000}, {"min_pixels": 1, "max_pixels": 9000}]
)
def test_limits_of_pixels_are_followed_as_the_processor_does(oracle: Oracle, limits: dict[str, int]) -> None:
    """Fails when a row's ``min_pixels`` or ``max_pixels`` gives another size than the processor, or none of its own."""
    still = replace(pictures()[-1][1], **limits)  # type: ignore[arg-type]
    frames = tuple(Medium(kind="image", data=png(np.full((90, 130, 3), 40 * i))) for i in range(3))
    moving = Medium(kind="video", frames=frames, fps=2.0, **limits)  # type: ignore[arg-type]
    model = oracle.family.model_type
    older = model in ("qwen2_5_vl", "exaone4_5")
    for medium, followed in ((still, older or model.startswith(("qwen", "paddle"))), (moving, older)):
        if not followed:
            assert oracle.ours(Document([medium])) == Refused("bad_row")
            continue
        ours, theirs = oracle.ours(Document([medium])), oracle.theirs(Document([medium]))
        assert isinstance(theirs, Made)
        assert differences(ours, theirs) == []
        without = oracle.ours(Document([replace(medium, min_pixels=None, max_pixels=None)]))
        assert differences(ours, without) != []


def test_several_images_and_a_video_in_one_conversation(oracle: Oracle, clips: list[Path]) -> None:
    """Fails when units, positions or grids of one image run into the next, or the media of a document change places."""
    first, second = pictures()[-1][1], pictures()[-2][1]
    clip = Medium(kind="video", uri=clips[3].name)
    media = [first, clip, second] if takes(oracle.family, "image", "video") else [first, second]
    document = Document(media, folder=str(clips[0].parent))
    ours, theirs = oracle.ours(document), oracle.theirs(document)
    assert isinstance(theirs, Made)
    assert differences(ours, theirs) == []


def test_what_a_family_cannot_show_together_is_refused_by_both(oracle: Oracle, clips: list[Path]) -> None:
    """Fails when a document is packed that the model's own processor or model refuses."""
    clip = Medium(kind="video", uri=clips[3].name)
    twice, both = ([*media, clip] for media in ([clip], [pictures()[-1][1]]))
    documents = [Document(media, folder=str(clips[0].parent)) for media in (twice, both)]
    if takes(oracle.family, "video", "video"):
        assert differences(oracle.ours(documents[0]), oracle.theirs(documents[0])) == []
    else:
        assert oracle.ours(documents[0]) == Refused("bad_row")
        assert isinstance(oracle.theirs(documents[0]), Refused)
    if not takes(oracle.family, "image", "video"):
        assert oracle.ours(documents[1]) == Refused("bad_row")
    if takes(oracle.family, "video") and not takes(oracle.family, "image", "video"):
        with pytest.raises(ValueError, match=r"do not match|at the same time"):
            oracle.run(documents[1])
