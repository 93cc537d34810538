"""A small sound dataset of every kind of document, and a tool that plants one fault in a copy and repairs the rest."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import shutil
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from known_shards import KnownShards
from PIL import Image

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.job.pack import pack
from preshard.packer_service.layout.mask import MaskIndex, full_and_window
from preshard.packer_service.layout.needs import key_blocks_needed
from preshard.packer_service.packs.measures import MeasureRows, UnitTotals, pack_figures
from preshard.packer_service.report.stored import write_figures
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import NoProgress
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify import Verdict
from preshard.schemas.config import parse_config
from preshard.schemas.dataset.identity import dataset_id
from preshard.schemas.dataset.manifest_parts import seal_manifest
from preshard.schemas.dataset.measures import MeasureOrder
from preshard.schemas.encode import encode_index, tar_member
from preshard.schemas.encode import encode_json as encode_record
from preshard.schemas.files.npz import decode_arrays
from preshard.schemas.files.npz_write import encode_arrays
from preshard.schemas.header import read_member
from preshard.schemas.layout import TokenLayout, UnitParts, segment_edges, unit_parts
from preshard.schemas.manifest import LayerMasks, Manifest
from preshard.schemas.members import crc32c
from preshard.schemas.schemes import zigzag_runs
from preshard.schemas.sequence import PackedSequence
from preshard.schemas.tables import TABLES


def _turns(question: list[Any] | str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def write_clip(path: Path, frames: int) -> None:
    """A video of ``frames`` frames, four a second."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(frames):
            picture = np.full((48, 64, 3), 10 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 4)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


@pytest.fixture(scope="session")
def mixed_source(tmp_path_factory: pytest.TempPathFactory, tiny_source: Path) -> Path:
    """The tiny source of every kind of document, with clips: alone, twice in one document, and under annotations."""
    folder = shutil.copytree(tiny_source, tmp_path_factory.mktemp("mixed") / "tiny")
    write_clip(folder / "clip.mp4", 12)
    clip = {"type": "video", "video": "clip.mp4"}
    rows = [
        {"id": "clip", "source": "video", "messages": _turns([clip], "grey")},
        {"id": "clips", "source": "video", "messages": _turns([clip, {**clip, "start": 1.0}], "grey twice")},
        {
            "id": "asked",
            "source": "video",
            "media": [clip],
            "annotations": [_turns("what", "grey"), _turns("or", "no")],
        },
    ]
    with (folder / "rows.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


@pytest.fixture(scope="session")
def packed(
    mixed_source: Path, tiny_settings: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Packs the mixed source, or another, under the tiny configuration with further settings. Each once: read only."""

    @cache
    def run(*settings: str, source: Path = mixed_source) -> Path:
        out = tmp_path_factory.mktemp("dataset") / "dataset"
        config = load_config(None, [*tiny_settings, *settings])
        pack([str(source)], str(out), config, PlainExecutor(), NoProgress())
        return out

    return run


STILLS = ((60, 40), (300, 90), (200, 220))
"""Width and height of photographs: one for a single tile, and two that tiled models cut."""


@pytest.fixture(scope="session")
def packed_for(
    mixed_source: Path, editable_of: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Any]:
    """A dataset of photographs and a clip, packed for a tiny model of a family. Each once: read only."""

    @cache
    def run(family: str) -> Any:
        folder = tmp_path_factory.mktemp(family)
        write_model_folder(folder / "model", family, vocabulary=400)
        shutil.copy(mixed_source / "clip.mp4", folder / "clip.mp4")
        shown = {"clip": {"type": "video", "video": "clip.mp4"}}
        for number, size in enumerate(STILLS):
            Image.fromarray(np.full((*size[::-1], 3), 40 * number, np.uint8)).save(folder / f"{number}.png")
            shown[f"image-{number}"] = {"type": "image", "image": f"{number}.png"}
        asked = {"type": "text", "text": "what is it?"}
        rows = [{"id": name, "messages": _turns([part, asked], "A colour.")} for name, part in shown.items()]
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        settings = [f"model={folder / 'model'}", "seq_len=4096", "max_images=64", "cp_sizes=[1]", "ring_degrees=[1]"]
        settings += ["oversize=reject", "layouts=[contiguous]", "video.max_frames=4", "order.window=1"]
        config = load_config(None, settings)
        pack([str(folder / "rows.jsonl")], str(folder / "dataset"), config, PlainExecutor(), NoProgress())
        return editable_of(folder / "dataset")

    return run


@pytest.fixture(scope="session")
def sound(packed: Callable[..., Path]) -> Path:
    """A sound dataset. Read only: copy it before changing anything."""
    return packed("vision.max_crops=4", "ring_degrees=[1,2]", "cp_sizes=[1,2,4]")


@pytest.fixture(scope="session")
def verify() -> Callable[[Path], Verdict]:
    known = KnownShards()
    return lambda folder: known.verify(folder, NoProgress())


ENCODED: dict[bytes, tuple[list[bytes], bytes]] = {}
"""Members of samples, and their pickled heads with the places of the crops, by the hash of what they were made from."""


@dataclass(kw_only=True)
class Sample:
    """A sample taken apart. ``names`` and ``crops`` are those of its crops. ``repaired``: checksums follow from it."""

    head: dict[str, Any]
    sequence: dict[str, np.ndarray]
    layouts: dict[str, np.ndarray]
    names: list[str]
    crops: list[bytes]
    repaired: bool = True

    @property
    def key(self) -> str:
        return f"{self.head['pack_id']:010d}"

    @property
    def arrays(self) -> PackedSequence:
        return PackedSequence(**self.sequence)

    def parts(self, *, shares_crops: bool) -> UnitParts:
        """Parts of the units that ranks are dealt."""
        crops, rows = (np.array(self.head[f"cum_{name}_bounds"], np.int64) for name in ("image", "token_pooling"))
        loads = np.array([unit["load"] for unit in self.head["units"]], np.int64)
        return unit_parts(crops, rows, loads, shares_crops=shares_crops)

    def token_layouts(self) -> list[TokenLayout]:
        names = [name for name in self.layouts if not name.endswith("needs")]
        return [
            TokenLayout(
                scheme=name.partition(".ring")[0],
                ring_degree=int(name.partition(".ring")[2]),
                block_size=len(self.sequence["tokens"]) // self.layouts[f"{name}.needs"].shape[1],
                runs=self.layouts[name],
                needs=self.layouts[f"{name}.needs"],
                window_needs=self.layouts.get(f"{name}.window_needs"),
            )
            for name in names
        ]

    def members(self, key: str) -> list[bytes]:
        """The sample as tar members, with ``images`` as the crops come to lie, and the checksums of all.

        Encoded once for all tests that leave it as it is.
        """
        state = hashlib.sha256(key.encode() + pickle.dumps(self)).digest()
        if state not in ENCODED:
            ENCODED[state] = self._encoded(key), pickle.dumps(self.head)
        members, head = ENCODED[state]
        self.head.update(pickle.loads(head))
        return members

    def _encoded(self, key: str) -> list[bytes]:
        crops = [tar_member(name, data) for name, data in zip(self.names, self.crops, strict=True)]
        at = 0
        for image, member, data in zip(self.head["images"], crops, self.crops, strict=False):
            image["offset"], image["size"] = at, len(data)
            if self.repaired:
                image["crc32c"] = crc32c(data)
            at += len(member)
        arrays = {"sequence.npz": _archive(self.sequence), "layouts.npz": _archive(self.layouts)}
        if self.repaired:
            self.head["crc32c"] = {extension: crc32c(data) for extension, data in arrays.items()}
        head = json.dumps(self.head, ensure_ascii=False, separators=(",", ":")).encode()
        header = {"json": head, **arrays}
        return [*(tar_member(f"{key}.{extension}", data) for extension, data in header.items()), *crops]


@dataclass(kw_only=True)
class Editable:
    """A dataset as Python objects. Change them, then :meth:`save` writes a dataset that agrees with itself again."""

    path: Path
    manifest: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    shards: list[list[Sample]] = field(default_factory=list)

    def load(self) -> Editable:
        self.manifest = json.loads((self.path / "manifest.json").read_bytes())
        self.tables = {name: pq.read_table(self.path / name).to_pylist() for name in TABLES}
        self.shards = [_read_shard(self.path / "shards" / entry["name"]) for entry in self.manifest["shards"]]
        return self

    @property
    def alignment(self) -> int:
        return parse_config(self.manifest["config"]).alignment

    @property
    def shares_crops(self) -> bool:
        """Whether ranks share the crops of a unit."""
        model = self.manifest["model"]
        return model is None or model["settings"].get("inputs") == "internvl"

    def samples(self) -> list[Sample]:
        return [sample for shard in self.shards for sample in shard]

    def shard_file(self, number: int = 0) -> Path:
        return self.path / "shards" / self.manifest["shards"][number]["name"]

    def sample_where(self, wanted: Callable[[Sample], bool]) -> Sample:
        """The first sample of a kind; failing to find one would make the test empty."""
        return next(sample for sample in self.samples() if wanted(sample))

    def derive(self, sample: Sample) -> None:
        """Makes needs, figures and loads of a sample follow from its arrays, layouts and boundaries."""
        config, index = parse_config(self.manifest["config"]), MaskIndex.of(sample.arrays.mask)
        model = self.manifest["model"] or {}
        layers = LayerMasks.model_validate(model["masks"]) if model.get("masks") else None
        masks = full_and_window(index, layers)
        for layout in sample.token_layouts():
            for name, mask in zip(("needs", "window_needs"), masks, strict=True):
                if mask is not None:
                    needs = key_blocks_needed(mask, layout.runs, layout.ring_degree, config.block_size)
                    sample.layouts[f"{layout.name}.{name}"] = needs
        pack_id, head = sample.head["pack_id"], sample.head
        lengths = np.array([span["length"] for span in head["documents"]], np.int64)
        bounds, loads = (
            np.array(column, np.int64)
            for column in (head["cum_image_bounds"], [unit["load"] for unit in head["units"]])
        )
        totals = UnitTotals(
            n_units=len(loads),
            n_images=int(bounds[-1]) if len(bounds) else 0,
            n_patches=sum(unit["patches"] for unit in head["units"]),
            load=int(loads.sum()),
        )
        self.tables["packs.parquet"][pack_id].update(
            pack_figures(pack_id, sample.arrays, masks[0], lengths, totals, config)
        )
        rows = MeasureRows()
        parts = sample.parts(shares_crops=self.shares_crops)
        boundaries = head["image_shard_boundaries"]
        rows.add_pack(pack_id, index, sample.token_layouts(), boundaries, parts.crops, parts.loads, layers)
        order = MeasureOrder.of(config, self.manifest["counts"]["packs"])
        others = [row for row in self.tables["measures.parquet"] if row["pack_id"] != pack_id]
        derived = sorted(others + rows.table().to_pylist(), key=lambda row: row["pack_id"])
        by_pack = pa.Table.from_pylist(derived, schema=TABLES["measures.parquet"])
        self.tables["measures.parquet"] = pa.concat_tables(order.by_table([by_pack])).to_pylist()

    def zigzag(self, sample: Sample) -> None:
        """Makes the zigzag layouts of a sample follow from its spans."""
        spans = sample.head["documents"]
        starts, aligned = (np.array([span[name] for span in spans], np.int64) for name in ("start", "aligned_length"))
        edges = segment_edges(starts, aligned, sample.arrays.seq_len)
        for degree in self.manifest["config"]["ring_degrees"]:
            sample.layouts[f"zigzag.ring{degree}"] = zigzag_runs(edges, degree)

    def relist(self) -> None:
        """Makes ``documents.parquet`` list the samples' spans, and the manifest count them."""
        truncated = {(row["doc_id"], row["piece"]): row["truncated_tokens"] for row in self.tables["documents.parquet"]}
        self.tables["documents.parquet"] = [
            {
                **span,
                "pack_id": s.head["pack_id"],
                "truncated_tokens": truncated.get((span["doc_id"], span["piece"]), 0),
            }
            for s in self.samples()
            for span in s.head["documents"]
        ]
        documents, counts = self.tables["documents.parquet"], self.manifest["counts"]
        counts["documents"], counts["pieces"] = len({row["doc_id"] for row in documents}), len(documents)
        counts["rejected"] = counts["source_documents"] - counts["documents"]
        columns = {"tokens": "n_tokens", "padding_tokens": "n_padding", "images": "n_images", "patches": "n_patches"}
        for name, column in columns.items():
            counts[name] = sum(row[column] for row in self.tables["packs.parquet"])

    def save(self, *, places: bool = True) -> None:
        """Writes everything anew. ``places``: rows of packs.parquet say where the samples now lie."""
        for number, samples in enumerate(self.shards):
            self._write_shard(number, samples, places=places)
        for name in TABLES:
            self.write_table(name, pa.Table.from_pylist(self.tables[name], schema=TABLES[name]))
        self.seal()

    def figure(self) -> None:
        """Makes the stored figures follow from the tables that are written."""
        config, packs = parse_config(self.manifest["config"]), self.manifest["counts"]["packs"]
        self.manifest["figures"] = write_figures(Folder(str(self.path)), config, packs).model_dump()
        self.seal()

    def _write_shard(self, number: int, samples: list[Sample], *, places: bool) -> None:
        entry, parts, offsets = self.manifest["shards"][number], [], []
        for index, sample in enumerate(samples):
            members = sample.members(f"{entry['first_pack'] + index:010d}")
            at = sum(map(len, parts))
            offsets.append(at)
            parts += members
            if places:
                header = sum(map(len, members[:3]))
                place = {"offset": at, "header_size": header, "size": sum(map(len, members))}
                head, _ = read_member(members[0], 0, f"{entry['first_pack'] + index:010d}.json", "")
                place["head_crc32c"] = crc32c(head)
                self.tables["packs.parquet"][entry["first_pack"] + index].update(place)
        self.write_shard_bytes(number, b"".join(parts) + bytes(1024), offsets)

    def write_shard_bytes(self, number: int, data: bytes, offsets: Iterable[int]) -> None:
        """Writes a tar and its index, and their size and hash into the manifest."""
        entry = self.manifest["shards"][number]
        entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        self.shard_file(number).write_bytes(data)
        index = self.shard_file(number).with_suffix(".tar.idx")
        index.write_bytes(encode_index(np.array([*offsets, len(data) - 1024], np.uint64)))

    def offsets(self, number: int) -> list[int]:
        shard = self.manifest["shards"][number]["name"]
        return [row["offset"] for row in self.tables["packs.parquet"] if row["shard"] == shard]

    def write_table(self, name: str, table: pa.Table) -> None:
        """Writes a table, and its size, hash and rows into the manifest."""
        buffer = io.BytesIO()
        each = self.manifest["counts"]["packs"] if name == "measures.parquet" else None
        pq.write_table(table, buffer, row_group_size=each or None)
        self.write_table_bytes(name, buffer.getvalue(), len(table))

    def write_table_bytes(self, name: str, data: bytes, rows: int) -> None:
        (self.path / name).write_bytes(data)
        entry = next(entry for entry in self.manifest["tables"] if entry["name"] == name)
        entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), rows=rows)

    def seal(self, *, new_id: bool = True) -> None:
        """Writes the manifest, with the id that follows from the documents and the hash of its own bytes."""
        manifest = Manifest.model_validate(self.manifest)
        if new_id:
            rows = pa.Table.from_pylist(self.tables["documents.parquet"], schema=TABLES["documents.parquet"])
            identity = dataset_id(parse_config(manifest.config), manifest.tokenizer, manifest.model, [rows])
            manifest = manifest.model_copy(update={"dataset_id": identity})
        (self.path / "manifest.json").write_bytes(encode_record(seal_manifest(manifest)))

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Writes a manifest that need not be one, with the hash of its own bytes."""
        manifest = {**manifest, "sha256": "0" * 64}
        data = json.dumps(manifest).encode()
        sealed = data.replace(b"0" * 64, hashlib.sha256(data).hexdigest().encode())
        (self.path / "manifest.json").write_bytes(sealed)


def _archive(arrays: dict[str, np.ndarray]) -> bytes:
    """Writes arrays as a job does, or as numpy does where a name is one that no job writes."""
    if all(name.isascii() for name in arrays):
        return encode_arrays(arrays)
    out = io.BytesIO()
    np.savez_compressed(out, allow_pickle=False, **arrays)
    return out.getvalue()


def _read_shard(path: Path) -> list[Sample]:
    grouped: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path) as tar:
        for info in tar:
            file = tar.extractfile(info)
            assert file is not None
            grouped.setdefault(info.name.partition(".")[0], {})[info.name] = file.read()
    return [_sample(members) for members in grouped.values()]


def _sample(members: dict[str, bytes]) -> Sample:
    head, sequence, layouts, *crops = members.values()
    return Sample(
        head=json.loads(head),
        sequence=decode_arrays(sequence, lambda _: 1 << 40),
        layouts=decode_arrays(layouts, lambda _: 1 << 40),
        names=list(members)[3:],
        crops=crops,
    )


Case = tuple[tuple[str, ...], str, Callable[[Any], None]]
"""The rule that a dataset breaks and those that it may break besides, what is wrong with it, and how it becomes so."""

WRITTEN: dict[str, Callable[[Editable], None]] = {
    "CASES": lambda _: None,
    "SEALED": Editable.seal,
    "SAVED": Editable.save,
}
"""The tables of cases that a module may have, by what is done once a dataset is changed."""


def cases_of(module: Any) -> list[Case]:
    """Corruptions of a dataset: rows of the module's tables, and functions with a mark ``breaks(rule, *also)``."""
    marked = [each for each in vars(module).values() if hasattr(each, "pytestmark")]
    found: list[Case] = [
        (mark.args, each.__name__, each) for each in marked for mark in each.pytestmark if mark.name == "breaks"
    ]
    for table, write in WRITTEN.items():
        for rules, wrong, change in getattr(module, table, ()):

            def corrupt(data: Any, change: Any = change, write: Any = write) -> None:
                change(data)
                write(data)

            found.append(((rules,) if isinstance(rules, str) else rules, wrong, corrupt))
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that takes ``rule``, ``also`` and ``corrupt`` once for every case of its module."""
    if "corrupt" in metafunc.fixturenames:
        cases = [
            pytest.param(rules[0], rules[1:], corrupt, id=f"{rules[0]}-{wrong}")
            for rules, wrong, corrupt in cases_of(metafunc.module)
        ]
        metafunc.parametrize(("rule", "also", "corrupt"), cases)


@pytest.fixture
def corrupt_rules(request: pytest.FixtureRequest) -> set[str]:
    """Rules for which the module has a corrupt dataset."""
    return {rules[0] for rules, *_ in cases_of(request.module)}


@pytest.fixture(scope="session")
def editable_of() -> Callable[[Path], Editable]:
    """A dataset as Python objects; the folder is written when it is saved."""
    return lambda path: Editable(path=path).load()


@pytest.fixture(scope="session")
def loaded(sound: Path) -> bytes:
    """The sound dataset as Python objects, pickled: unpickling takes a tenth of the time of reading it."""
    return pickle.dumps(vars(Editable(path=sound).load()))


@pytest.fixture
def editable(sound: Path, loaded: bytes, tmp_path: Path) -> Editable:
    """A copy of the sound dataset, to be corrupted."""
    return Editable(**{**pickle.loads(loaded), "path": shutil.copytree(sound, tmp_path / "dataset")})


@pytest.fixture
def assert_breaks(verify: Callable[[Path], Verdict]) -> Callable[..., Verdict]:
    """Asserts that a dataset breaks a rule and, but for those named besides, no other."""

    def check(editable: Editable, rule: str, *also: str) -> Verdict:
        verdict = verify(editable.path)
        found = {fault.rule for fault in verdict.broken}
        assert rule in found, verdict.as_lines()
        assert found <= {rule, *also}, verdict.as_lines()
        for fault in verdict.broken:
            assert fault.file, fault
            assert len(fault.detail) > 5, fault
            assert "cannot be checked" not in fault.detail, "a check that fails by itself has found nothing"
            assert type(fault.error()).rule == fault.rule
        assert not verdict.as_json()["sound"]
        return verdict

    return check
