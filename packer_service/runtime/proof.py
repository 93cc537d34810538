"""Proof of a worker: its node has the driver's code, packages and files. Given once by each process, before its first
task, since a node that differs would pack its rows in another way without a word."""

from __future__ import annotations

import hashlib
import platform
import posixpath
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pyarrow import ArrowException, fs

import preshard
from preshard.schemas import VERSION
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import is_remote, join, locate

ROOMS = ("schemas", "packer_service")
"""Folders whose code decides what is packed."""
PACKAGES = (
    *("av", "datasketch", "duckdb", "jinja2", "mistral-common", "numba", "numpy", "pillow", "pyarrow", "pypdfium2"),
    *("scipy", "tiktoken", "tokenizers", "transformers"),
)
"""Packages whose version can decide bytes."""
SEEN_SECONDS = 10.0
"""Longest time until a file that a worker has written is seen by the driver; NFS keeps attributes for some seconds."""
LOOK_SECONDS = 0.1
MOST_ENTRIES = 16
"""Files that a worker looks for in each place: enough to tell a folder that is not mounted."""
DRIVER = "driver"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A file or folder that the driver sees: ``item`` is what messages call it, ``remedy`` what makes it be seen."""

    item: str
    location: str
    remedy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """Code of the user's own, which tasks import: ``item`` is what messages call it, ``hash_it`` hashes it anywhere."""

    item: str
    hash_it: Callable[[], str]
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """Proof that each worker of a job gives.

    Args:
        token: tells this run of the job from all others.
        out: the dataset's folder, as messages name it.
        folder: location of a folder in it, where the driver has left a file and each worker leaves one.
        software: names and versions as the driver has them.
        places: files and folders that the driver sees.
        code: the user's own.
    """

    token: str
    out: str
    folder: str
    software: tuple[tuple[str, str], ...]
    places: tuple[Place, ...]
    code: tuple[Code, ...] = ()

    def fault(self, name: str) -> str | None:
        """Difference that is found here; None after a file ``name`` was written into the folder. Runs in a worker."""
        here = dict(software())
        for what, wanted in self.software:
            if here[what] != wanted:
                return _other_software(what, here[what], wanted)
        try:
            filesystem, path = locate(join(self.folder, f"{DRIVER}-{self.token}"))
            if filesystem.get_file_info(path).type != fs.FileType.File:
                return f"--out {self.out}: is not the folder that the driver sees; {_SHARE}"
            filesystem, path = locate(join(self.folder, name))
            with filesystem.open_output_stream(path) as sink:
                sink.write(b"")
        except (OSError, ArrowException, ConfigError) as error:
            return f"--out {self.out}: cannot be read and written ({_one_line(error)}); {_SHARE}"
        try:
            with tempfile.TemporaryFile() as file:
                file.write(b"x")
                file.flush()
        except OSError as error:
            return f"its folder for temporary files cannot be written ({_one_line(error)}); make room, or set TMPDIR"
        faults = (*map(_unseen, self.places), *map(_other_code, self.code))
        return next(filter(None, faults), None)

    def is_seen(self, name: str) -> bool:
        """Whether the driver sees the file that a worker has written; waits for it. Runs in the driver."""
        filesystem, path = locate(join(self.folder, name))
        until = time.monotonic() + SEEN_SECONDS
        while not (found := filesystem.get_file_info(path).type == fs.FileType.File) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        return found

    @property
    def unseen(self) -> str:
        """Fault of a node whose file the driver does not see."""
        return f"--out {self.out}: what is written there is not seen by the driver; {_SHARE}"


_SHARE = "give a folder that all nodes share, or an object store"


def make_proof(out: str, folder: str, places: Iterable[Place], code: Iterable[Code] = ()) -> Proof:
    """The driver's side: leaves its file in the folder, and notes what it has and sees.

    Args:
        out: the dataset's folder.
        folder: a folder in it that is there.
        places: files and folders of the job. Of a folder, some of its files are taken.
        code: the user's own.
    """
    token = uuid.uuid4().hex[:12]
    filesystem, path = locate(join(folder, f"{DRIVER}-{token}"))
    if isinstance(filesystem, fs.LocalFileSystem):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with filesystem.open_output_stream(path) as sink:
        sink.write(b"")
    seen = tuple(each for place in places for each in _sights(place))
    return Proof(token=token, out=out, folder=folder, software=software(), places=seen, code=tuple(code))


@cache
def software() -> tuple[tuple[str, str], ...]:
    """Names and versions of what decides bytes here: preshard, its code, Python, packages."""
    versions = [
        ("preshard", VERSION),
        ("code", _hash_code()),
        ("Python", ".".join(platform.python_version_tuple()[:2])),
    ]
    return (*versions, *((package, _version(package)) for package in PACKAGES))


def _hash_code() -> str:
    root, digest = Path(preshard.__file__).parent, hashlib.sha256()
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            contents = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(contents)}\n".encode() + contents)
    return digest.hexdigest()[:12]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _other_software(what: str, here: str, wanted: str) -> str:
    if what == "code":
        return (
            f"preshard {VERSION} with other code (SHA-256 {here}..., the driver's {wanted}...); install the driver's "
            "on it, or send it to all nodes by ray job submit --working-dir"
        )
    remedy = f"pip install '{what}=={wanted}'" if wanted != "none" else f"pip uninstall {what}"
    remedy = f"give all nodes Python {wanted}" if what == "Python" else f"run on it: {remedy}"
    return f"{what} {here}, the driver has {wanted}; {remedy}"


def _sights(place: Place) -> Sequence[Place]:
    """A place and some of what a folder holds, two levels deep: one that is not mounted may be an empty folder."""
    if is_remote(place.location):
        return [place]
    path = Path(locate(place.location)[1])
    found = [path, *(entry for each in _first(path) for entry in (each, *_first(each)[:1]))]
    return [Place(item=place.item, location=str(each), remedy=place.remedy) for each in found if each.exists()]


def _first(folder: Path) -> list[Path]:
    """Some entries of a folder; none of a file, or of a folder that may not be listed."""
    try:
        with_hidden = zip(folder.iterdir(), range(4 * MOST_ENTRIES), strict=False)
        return sorted(entry for entry, _ in with_hidden if not entry.name.startswith("."))[:MOST_ENTRIES]
    except OSError:
        return []


def _unseen(place: Place) -> str | None:
    try:
        filesystem, path = locate(place.location)
        if filesystem.get_file_info(path).type != fs.FileType.NotFound:
            return None
        reason = "is not there, though the driver sees it"
    except (OSError, ArrowException, ConfigError) as error:
        reason = f"cannot be looked at ({_one_line(error)}), though the driver sees it"
    name = place.location if is_remote(place.location) else posixpath.normpath(place.location)
    return f"{place.item} {name}: {reason}; {place.remedy}"


def _other_code(code: Code) -> str | None:
    try:
        here = code.hash_it()
    except ConfigError as error:
        return _one_line(error)
    if here == code.sha256:
        return None
    hashes = f"SHA-256 {here[:12]}..., the driver's {code.sha256[:12]}..."
    return f"{code.item}: its file is another there ({hashes}); copy the driver's to all nodes"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
