"""Draws docs/families/photograph.png: the crops that each family makes of a photograph, and prints the page's table."""

from __future__ import annotations

import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

from preshard.packer_service.demo.media import package_folder
from preshard.packer_service.demo.model import tiny_model, write_model_folder
from preshard.packer_service.ingest.families.family import Family, Placement, Rows
from preshard.packer_service.ingest.families.folder import load_family
from preshard.schemas.model.families import FAMILIES

PHOTOGRAPH = "coffee.png"
CLIP = (640, 360, [0.5 * number for number in range(8)])
"""Width, height and times of the clip of the table: four seconds, sampled twice a second."""

HEIGHT, GAP, TITLE = 150, 6, 22
BACKGROUND = (245, 245, 245)


def families() -> dict[str, Family]:
    """Each family with the geometry of its published models."""
    made = {}
    for name in (name for name in FAMILIES if not name.endswith("_moe")):
        with tempfile.TemporaryDirectory() as folder:
            write_model_folder(Path(folder), name, vocabulary=256, files=tiny_model(name).published)
            made[name] = load_family(folder).family
    return made


def crops_of(image: Image.Image, placement: Placement) -> list[Image.Image]:
    """The pictures that a shard would hold, all drawn to one height."""
    pictures = []
    for crop in (crop for unit in placement.units for crop in unit.crops):
        picture = image.resize(crop.canvas, Image.Resampling.BICUBIC).crop(crop.box)
        pictures.append(picture.resize((round(picture.width * HEIGHT / picture.height), HEIGHT)))
    return pictures


def drawing() -> Image.Image:
    """One line for each family: its name, how many crops of which size, and the crops in their order."""
    with Image.open(package_folder("skimage", "data") / PHOTOGRAPH) as opened:
        image = opened.convert("RGB")
    placements = {name: family.image(*image.size) for name, family in families().items()}
    lines = {name: crops_of(image, placement) for name, placement in placements.items()}
    width = max(sum(picture.width + GAP for picture in pictures) for pictures in lines.values()) + GAP
    page = Image.new("RGB", (width, len(lines) * (HEIGHT + TITLE + 2 * GAP)), BACKGROUND)
    draw, top = ImageDraw.Draw(page), GAP
    for name, pictures in lines.items():
        [unit] = placements[name].units
        sizes = sorted({crop.size for crop in unit.crops})
        said = " and ".join(f"{wide} x {high}" for wide, high in sizes)
        draw.text((GAP, top), f"{name}: {len(pictures)} of {said}, {unit.rows} rows", fill="black", font_size=15)
        left = GAP
        for picture in pictures:
            page.paste(picture, (left, top + TITLE))
            left += picture.width + GAP
        top += HEIGHT + TITLE + 2 * GAP
    return page


def described(placement: Placement) -> str:
    """Units, pictures, rows and all tokens between the placeholder's neighbours, text not counted."""
    tokens = sum(piece.count if isinstance(piece, Rows) else not isinstance(piece, str) for piece in placement.pieces)
    pictures = sum(len(unit.crops) for unit in placement.units)
    rows, patches = (sum(getattr(unit, name) for unit in placement.units) for name in ("rows", "patches"))
    return f"{len(placement.units)} | {pictures} | {patches:,} | {rows:,} | {tokens - rows}"


def table() -> str:
    """The page's table, in Markdown."""
    lines = [
        "| | | units | stored pictures | patches | rows | marks |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, family in families().items():
        lines.append(f"| `{name}` | photograph | {described(family.image(640, 480))} |")
        if type(family).video is not Family.video:
            lines.append(f"| | clip | {described(family.video(*CLIP))} |")
    return "\n".join(lines)


def main() -> None:
    target = Path(__file__).parent / "families" / "photograph.png"
    target.parent.mkdir(exist_ok=True)
    drawing().quantize(96).save(target, optimize=True)
    print(table())


if __name__ == "__main__":
    main()
