"""Tars of every type of member: files, links, sparse files, devices, in every format and order, whole and damaged.

``tarfile`` says what each member holds, and webdataset which members are one sample. A sample of which either knows no
whole content must be a reject.
"""

from __future__ import annotations

import io
import random
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from files import Case
from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_iterator

from preshard.packer_service.ingest.source.containers import tar_samples
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment, read_row
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.schemas.errors import ConfigError, DocumentError

IMAGES = ("jpg", "png", "bmp", "webp", "1.jpg", "0.png", "JPG")
OTHERS = ("cls", "npy", "seg.npy")
ODD = ("fifo", "device", "folder", "hidden", "meta", "bare", "global")


@dataclass(frozen=True)
class Facts:
    """Changes made to the tar behind its members."""

    damage: str


def draw(seed: int, folder: Path) -> Case:
    rng = random.Random(seed)
    layout = rng.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    path = folder / "f.tar"
    entries = _entries(rng, layout)
    with tarfile.open(path, "w", format=layout) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    damage = rng.choice(["none"] * 6 + ["cut", "header", "joined", "no end"])
    data = path.read_bytes()
    if damage == "cut":
        data = data[: rng.randrange(513, len(data))]
    elif damage == "header":
        at = 512 * rng.randrange(1, len(data) // 512)
        data = data[:at] + b"\xff" * 8 + data[at + 8 :]
    elif damage == "joined":
        data += data
    elif damage == "no end":
        data = data.rstrip(b"\0")
        data += bytes(-len(data) % 512)
    path.write_bytes(data)
    return Case(kind=damage, files=(path,), facts=Facts(damage))


def _entries(rng: random.Random, layout: int) -> list[tuple[tarfile.TarInfo, bytes]]:
    folders, entries, named = ["", "a/", "./b/"], list[tuple[tarfile.TarInfo, bytes]](), list[str]()
    folders += ["x" * 120 + "/"] * (layout != tarfile.USTAR_FORMAT)
    for number in range(rng.randint(1, 6)):
        key = f"{rng.choice(folders)}{number:03}"
        sample = [_member(rng, f"{key}.txt", named, layout, is_text=True)]
        for suffix in rng.sample([*IMAGES, *OTHERS], rng.randint(1, 3)):
            sample.append(_member(rng, f"{key}.{suffix}", named, layout))
        rng.shuffle(sample)
        entries += sample
        named += [info.name for info, _ in sample]
        if rng.random() < 0.3:
            entries.insert(rng.randrange(len(entries) + 1), _odd(rng, number))
    if rng.random() < 0.15:  # once more
        entries.append(rng.choice(entries))
    if rng.random() < 0.15:  # apart
        entries.append(entries.pop(rng.randrange(len(entries))))
    return entries


def _member(
    rng: random.Random, name: str, named: list[str], layout: int, *, is_text: bool = False
) -> tuple[tarfile.TarInfo, bytes]:
    info, kind = tarfile.TarInfo(name), rng.random()
    data = f"text of {name}".encode() if is_text else rng.randbytes(rng.choice([0, 1, 511, 512, 513, 3000]))
    texts = [one for one in named if one.endswith(".txt")]
    known = texts if is_text else [one for one in named if not one.endswith(".txt")]
    if kind < 0.15 and known:
        info.type, info.linkname, data = tarfile.LNKTYPE, rng.choice(known), b""
    elif kind < 0.3 and known:
        up = "../" * info.name.removeprefix("./").count("/")
        info.type, info.linkname, data = tarfile.SYMTYPE, up + rng.choice(known).removeprefix("./"), b""
    elif kind < 0.34:
        info.type, info.linkname, data = rng.choice([tarfile.LNKTYPE, tarfile.SYMTYPE]), "nowhere.jpg", b""
    elif kind < 0.36:
        info.type, info.linkname, data = tarfile.SYMTYPE, name.rpartition("/")[2], b""
    elif kind < 0.5 and not is_text and layout == tarfile.PAX_FORMAT:
        data = _sparse(rng, info)
    info.size = len(data)
    return info, data


def _sparse(rng: random.Random, info: tarfile.TarInfo) -> bytes:
    """Data of a sparse file in one of the three forms of PAX."""
    at, places = 0, list[tuple[int, int]]()
    for _ in range(rng.randint(1, 4)):  # of none tarfile makes an error
        at += rng.choice([0, 512, 5000])
        size = rng.choice([1, 512, 700])
        places.append((at, size))
        at += size
    size = at + rng.choice([0, 4096])
    parts = b"".join(rng.randbytes(length) for _, length in places)
    flat = [str(number) for place in places for number in place]
    form = rng.choice(["0.1", "1.0"])
    if form == "0.1":
        info.pax_headers = {"GNU.sparse.map": ",".join(flat), "GNU.sparse.size": str(size),
                            "GNU.sparse.numblocks": str(len(places)), "GNU.sparse.name": info.name}  # fmt: skip
        return parts
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": info.name,
                        "GNU.sparse.realsize": str(size)}  # fmt: skip
    head = "\n".join([str(len(places)), *flat, ""]).encode()
    return head + bytes(-len(head) % 512) + parts


def _odd(rng: random.Random, number: int) -> tuple[tarfile.TarInfo, bytes]:
    kind, data = rng.choice(ODD), b""
    info = tarfile.TarInfo(f"odd{number}")
    if kind in ("fifo", "device", "folder"):
        info.name += "" if kind == "folder" else ".jpg"
        info.type = {"fifo": tarfile.FIFOTYPE, "device": tarfile.CHRTYPE, "folder": tarfile.DIRTYPE}[kind]
    elif kind == "global":
        info.type, data = tarfile.XGLTYPE, b"16 comment=odd1\n"
    else:
        info.name = {"hidden": f"._{number}.jpg", "meta": f"__meta{number}__", "bare": f"README{number}"}[kind]
        data = b"odd"
    info.size = len(data)
    return info, data


def judge(case: Case) -> list[str]:
    [path] = case.files
    expected, doubtful, unknown = _expected(path)
    try:
        [file] = list_sources([str(path)]).files
    except ConfigError as error:
        return [f"refused, with samples {sorted(expected)}: {error}"] if expected and not doubtful else []
    [fragment] = list_fragments([file])
    rows, rejects, wrong = dict[str, Any](), list[str](), list[str]()
    found = [(reference, row) for _, reference, row in read_fragment(fragment).rows]
    for reference, row in found:
        if isinstance(row, DocumentError):
            rejects.append(str(row))
            continue
        key = row["id"].removeprefix("f.tar/")
        wrong += [f"{key} comes twice"] if key in rows else []
        rows[key] = {name: value for name, value in row.items() if name != "id"}
        tar_samples._LINKS.clear()
        if read_row(file, reference) != row:
            wrong.append(f"{key} is another row when it is read again")
    for key, row in rows.items():
        if key in unknown:
            continue
        if key not in expected:
            wrong.append(f"{key} is packed, and no whole sample: {sorted(row)}")
        elif row != expected[key]:
            wrong.append(f"{key}: {_shown(row)} is not {_shown(expected[key])}")
    missing = [key for key in expected if key not in rows and key not in doubtful and not unknown]
    if missing and case.facts.damage in ("none", "no end", "joined"):
        wrong.append(f"{missing} are lost; rejects: {rejects}")
    if (case.facts.damage == "joined" or doubtful) and not rejects:
        wrong.append(f"{case.facts.damage}, {sorted(doubtful)}: nothing is said")
    return wrong


def _expected(path: Path) -> tuple[dict[str, Any], set[str], set[str]]:
    """The rows of whole samples, the keys of the others, and those of which ``tarfile`` knows nothing: it looks for
    what a link stands for in the whole tar, and fails where that ends early."""
    is_whole = True
    order, linked = list[tuple[str, bytes | None]](), set[str]()
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                if not (member.isreg() or member.islnk() or member.issym()):
                    continue
                try:
                    opened = tar.extractfile(member)
                    data = None if opened is None else opened.read()
                    data = None if data is not None and member.isreg() and len(data) < member.size else data
                except (KeyError, RecursionError):
                    data = None
                except (ValueError, tarfile.TarError, OSError):
                    data, is_whole = None, False
                linked |= set() if member.isreg() else {str(base_plus_ext(member.name)[0])}
                order.append((member.name, data))
    except (tarfile.TarError, ValueError):  # what should be a number is not
        is_whole = False
    runs, whole, last = Counter[str](), dict[str, dict[str, bytes | None]](), None
    doubtful = set[str]()
    for name, data in order:
        key, suffix = base_plus_ext(name)
        is_left_out = name.rpartition("/")[2].startswith(".") or (name.startswith("__") and "__" in name[2:])
        if key is None or is_left_out:
            continue
        suffix = suffix.lower()
        if key != last:
            runs[key] += 1
            last = key
        members = whole.setdefault(key, {})
        if suffix in members or data is None:
            doubtful.add(key)
        members[suffix] = data
    doubtful |= {key for key, times in runs.items() if times > 1}
    if last is not None and not is_whole:
        doubtful.add(last)
    for sample in _by_webdataset(path):
        own = {name: data for name, data in sample.items() if not name.startswith("__")}
        key = sample["__key__"]
        if key not in doubtful and own != {n: d for n, d in whole.get(key, own).items() if n in own}:
            doubtful.add(key)
    rows = {key: _row(members) for key, members in whole.items() if key not in doubtful}  # type: ignore[arg-type]
    return rows, doubtful, set() if is_whole else linked


def _by_webdataset(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            return list(group_by_keys(tar_file_iterator(file), handler=lambda _: True))
    except (tarfile.TarError, ValueError, OSError):
        return []


def _row(members: dict[str, bytes]) -> dict[str, Any]:
    images = [
        (int(suffix.rpartition(".")[0] or -1), order, data)
        for order, (suffix, data) in enumerate(members.items())
        if suffix.rpartition(".")[2] in ("jpg", "png", "bmp", "webp")
    ]
    row: dict[str, Any] = {suffix: data for suffix, data in members.items() if suffix in ("txt", *OTHERS)}
    if "txt" in row:
        row["txt"] = row["txt"].decode(errors="replace")
    if images:
        row["image" if len(images) == 1 else "images"] = (
            images[0][2] if len(images) == 1 else [data for *_, data in sorted(images)]
        )
    return row


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, str) else f"{type(value).__name__} {str(value)[:40]}"
        for name, value in row.items()
    }
