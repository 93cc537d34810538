"""Cost of scaling and packing a photograph with either backend of image processors, and what torch takes for it.

    python tests/benchmarks/stills.py [--rounds 7]

"scaling" is the picture at its full size to all of its canvases: by Pillow's filter (``images.backend: pil``), by ours
(``torchvision``), and by torch's own with one thread, which is the floor. "whole" is a JPEG file to stored JPEGs, as
packing does it. Milliseconds of processor time, the median of all rounds, in which the ways take turns.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]

from machine import hardware  # noqa: E402

from preshard.packer_service.demo.media import package_folder  # noqa: E402
from preshard.packer_service.demo.model import tiny_model, write_model_folder  # noqa: E402
from preshard.packer_service.ingest.document import Medium  # noqa: E402
from preshard.packer_service.ingest.families.folder import load_family  # noqa: E402
from preshard.packer_service.ingest.media.crops import encoded_crops  # noqa: E402
from preshard.packer_service.ingest.media.reach import MediaReach  # noqa: E402
from preshard.packer_service.ingest.media.scale import scaled  # noqa: E402
from preshard.packer_service.ingest.media.shape import ImageSize, place  # noqa: E402
from preshard.schemas.sections import ImageBackend  # noqa: E402

SIZES = ((640, 480), (1280, 960), (2048, 1536), (4000, 3000))
BACKENDS: tuple[ImageBackend, ...] = get_args(ImageBackend)


def by_torch(image: Image.Image, canvases: set[tuple[int, int]]) -> None:
    """Torch's filter, on the layout that the processors give it."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].contiguous()
    for width, height in canvases:
        torch.nn.functional.interpolate(pixels, (height, width), mode="bicubic", antialias=True)


def ways_of(folder: str, image: Image.Image) -> dict[str, Callable[[], object]]:
    """Calls that are measured, by the heading of their column."""
    out, ways = io.BytesIO(), {}
    image.save(out, "JPEG", quality=90)
    medium = Medium(kind="image", data=out.getvalue())
    options = {"doc_id": "d", "first_unit": 0, "image_format": "jpeg", "jpeg_quality": 90}
    for backend in BACKENDS:
        placed = place(load_family(folder, backend).family, medium, ImageSize(*image.size))
        canvases = {crop.canvas for unit in placed.placement.units for crop in unit.crops}
        filter_ = placed.placement.scaling
        ways[f"scaling, {backend}"] = lambda canvases=canvases, filter_=filter_: [
            scaled(image, canvas, filter_) for canvas in canvases
        ]
        ways[f"whole, {backend}"] = lambda placed=placed: list(
            encoded_crops(medium, MediaReach.of("/"), placed, **options)
        )
    return {**ways, "scaling, torch": lambda: by_torch(image, canvases)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(hardware())
    columns = [*(f"{part}, {backend}" for part in ("scaling", "whole") for backend in BACKENDS), "scaling, torch"]
    print(f"| family | photograph | canvases | {' | '.join(columns)} |\n|{'---|' * (3 + len(columns))}")
    with Image.open(package_folder("skimage", "data") / "coffee.png") as opened:
        subject = opened.convert("RGB")
    for family in ("qwen3_vl", "qwen2_5_vl", "internvl"):
        with tempfile.TemporaryDirectory() as folder:
            write_model_folder(Path(folder), family, vocabulary=256, files=tiny_model(family).published)
            for size in SIZES:
                image, taken = subject.resize(size, Image.Resampling.BILINEAR), defaultdict[str, list[float]](list)
                for _ in range(chosen.rounds + 1):  # the first warms up
                    for name, way in ways_of(folder, image).items():
                        began = time.process_time()
                        way()
                        taken[name].append(1000 * (time.process_time() - began))
                shapes = {crop.canvas for unit in load_family(folder).family.image(*size).units for crop in unit.crops}
                shown = ", ".join(f"{width} x {height}" for width, height in sorted(shapes, reverse=True))
                figures = [f"{statistics.median(taken[name][1:]):.1f}" for name in columns]
                print(f"| {family} | {size[0]} x {size[1]} | {shown} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
