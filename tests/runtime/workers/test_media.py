"""Media through the helper process, alone and in whole packs: the document that breaks the decoder is the only loss."""

from __future__ import annotations

import io
import json
import os
import shutil
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.folder import SquareFamily
from preshard.packer_service.ingest.media import isolated as media_calls
from preshard.packer_service.ingest.media.crops import encoded_crops
from preshard.packer_service.ingest.media.image import probe_image
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import place
from preshard.packer_service.ingest.media.video import probe_video
from preshard.packer_service.ingest.text.tokenizer import ImageFormat
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.workers import CallFailedError, Isolated, Limits
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError


def write_video(path: Path, *, n_frames: int = 30) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"threads": "1"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for number in range(n_frames):
            pixels = np.full((64, 96, 3), 8 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("kind", ["image", "video"])
def test_the_same_bytes_as_in_this_process(tmp_path: Path, tiny_config: PackConfig, kind: str, inline: bool) -> None:
    """Fails when the way through the helper changes a shape or a byte of a crop."""
    path = tmp_path / kind
    if kind == "image":
        noise = np.random.default_rng(0).integers(0, 255, (150, 200, 3), np.uint8)
        Image.fromarray(noise).save(path, "PNG")
        medium = Medium(kind="image", data=path.read_bytes()) if inline else Medium(kind="image", uri="image")
        [here] = probe_image(medium, MediaReach.of(str(tmp_path)))
    else:
        write_video(path.with_suffix(".mp4"))
        data = path.with_suffix(".mp4").read_bytes()
        medium = Medium(kind="video", data=data) if inline else Medium(kind="video", uri="video.mp4")
        here = probe_video(medium, MediaReach.of(str(tmp_path)), fps=2.0, max_frames=384)
    options = {"doc_id": "d", "first_unit": 3, "image_format": "jpeg", "jpeg_quality": 90}
    [shape] = media_calls.probe(medium, MediaReach.of(str(tmp_path)), tiny_config)
    assert repr(shape) == repr(here)
    marks = ImageFormat(begin=(), token=0, separator=(), end=())
    placed = place(SquareFamily(tiny_config.vision, marks, 1), medium, here)
    crops = media_calls.crops(medium, MediaReach.of(str(tmp_path)), placed, tiny_config, doc_id="d", first_unit=3)
    assert crops == list(encoded_crops(medium, MediaReach.of(str(tmp_path)), placed, **options))
    assert [Image.open(io.BytesIO(crop.data)).size for crop in crops] == [(56, 56)] * (6 if kind == "video" else 1)


@pytest.mark.parametrize("kind", ["image", "video"])
def test_a_decoder_that_breaks_has_the_code_of_its_step(
    monkeypatch: pytest.MonkeyPatch, broken: ModuleType, isolated: Isolated, tiny_config: PackConfig, kind: str
) -> None:
    """Fails when a crash of the probe or of the decoder ends in another code, or does not name the media."""
    medium = Medium(kind=kind, uri="x/y.bin")
    monkeypatch.setattr(media_calls, "_DECODER", isolated)
    for name in ("probe_image", "probe_video", "encoded_crops"):
        monkeypatch.setattr(media_calls, name, broken.segfaults)
    with pytest.raises(DocumentError) as probed:
        media_calls.probe(medium, MediaReach.of("/"), tiny_config)
    with pytest.raises(DocumentError) as decoded:
        media_calls.crops(medium, MediaReach.of("/"), None, tiny_config, doc_id="d", first_unit=0)
    assert (probed.value.code, decoded.value.code) == (f"bad_{kind}", "decode_failed")
    reason = "the decoder crashed (SIGSEGV; its memory is limited to 512 MiB (decoder_mib)) in 2 of 2 tries"
    assert str(probed.value) == str(decoded.value) == f"x/y.bin: {reason}"


def test_a_process_of_decoders_loads_what_decodes(isolated: Isolated, broken_media: ModuleType) -> None:
    """Fails when decoders import what they do not call: each process that packs starts one, and each retry another."""
    [loaded] = isolated.call(broken_media.loaded)
    assert {"av", "PIL", "numpy", "pyarrow"} <= loaded
    assert not loaded & {"pydantic", "jaxtyping", "asyncio", "torch", "numba", "tokenizers", "ray"}


def rejected(dataset: Path) -> dict[str, tuple[str, str, str]]:
    rows = pq.read_table(dataset / "rejects.parquet").to_pylist()
    return {row["doc_id"]: (row["stage"], row["code"], row["message"]) for row in rows}


def documents(dataset: Path) -> set[str]:
    return set(pq.read_table(dataset / "documents.parquet").column("doc_id").to_pylist())


WITH_3 = "question-3"
"""The one document of ``few`` that shows 3.png."""
OTHERS_WITH_3 = ("question-4", "question-8", "question-9")


@pytest.fixture(scope="module")
def few(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny source with one document that shows 3.png: each would cost two helper processes in each test."""
    source = shutil.copytree(tiny_source, tmp_path_factory.mktemp("few") / "tiny")
    lines = (source / "rows.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not any(f'"{doc_id}"' in line for doc_id in OTHERS_WITH_3)]
    assert len(kept) == len(lines) - len(OTHERS_WITH_3)
    (source / "rows.jsonl").write_text("".join(kept), encoding="utf-8")
    return source


@pytest.fixture(scope="module")
def undisturbed(few: Path, tiny_config: PackConfig, tmp_path_factory: pytest.TempPathFactory, progress: object) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "dataset"
    pack([str(few)], str(out), tiny_config, PlainExecutor(), progress)
    return out


CRASHED = "3.png: the decoder crashed ({}; its memory is limited to 512 MiB (decoder_mib)) in 2 of 2 tries"
ATE = "3.png: the decoder needs more than its 512 MiB (decoder_mib) of memory in 2 of 2 tries"
CASES = {
    "probe": ("probe_image", "probe_that_crashes_on_one", "measure", "bad_image", CRASHED.format("SIGABRT")),
    "crash": ("encoded_crops", "crops_that_crash_on_one", "write", "decode_failed", CRASHED.format("SIGSEGV")),
    "memory": ("encoded_crops", "crops_that_eat_on_one", "write", "decode_failed", ATE),
}


@pytest.mark.parametrize("case", CASES)
def test_a_document_that_breaks_the_decoder_is_all_that_a_pack_loses(
    monkeypatch: pytest.MonkeyPatch,
    broken_media: ModuleType,
    isolated: Isolated,
    few: Path,
    undisturbed: Path,
    tiny_config: PackConfig,
    tmp_path: Path,
    progress: object,
    case: str,
) -> None:
    """Fails when a crash ends the job, takes a neighbour with it, or leaves layouts of what is not there."""
    name, function, stage, code, message = CASES[case]
    monkeypatch.setattr(media_calls, "_DECODER", isolated)
    monkeypatch.setattr(media_calls, name, getattr(broken_media, function))
    out = tmp_path / "out"
    manifest = pack([str(few)], str(out), tiny_config, PlainExecutor(), progress).manifest
    found = rejected(out)
    assert found == {**rejected(undisturbed), WITH_3: (stage, code, message)}
    assert WITH_3 in documents(undisturbed)
    assert documents(out) == documents(undisturbed) - {WITH_3}
    assert verify_dataset(str(out), processes=1, progress=progress).sound
    if stage == "write":
        before = pq.read_table(undisturbed / "packs.parquet")
        assert manifest.counts.packs == before.num_rows


def test_decoders_that_crash_once_leave_no_trace_in_a_dataset(
    monkeypatch: pytest.MonkeyPatch,
    broken_media: ModuleType,
    isolated: Isolated,
    few: Path,
    undisturbed: Path,
    tiny_config: PackConfig,
    tmp_path: Path,
    progress: object,
) -> None:
    """Fails when the second try gives other bytes than an undisturbed run."""
    source = shutil.copytree(few, tmp_path / "tiny")
    monkeypatch.setattr(media_calls, "_DECODER", isolated)
    monkeypatch.setattr(media_calls, "encoded_crops", broken_media.crops_that_crash_once)
    pack([str(source)], str(tmp_path / "out"), tiny_config, PlainExecutor(), progress)
    assert len(list(source.glob("tried *"))) == 2
    for shard in (undisturbed / "shards").iterdir():
        assert (tmp_path / "out" / "shards" / shard.name).read_bytes() == shard.read_bytes()


def test_what_a_pass_gave_before_it_crashed_is_not_packed(
    monkeypatch: pytest.MonkeyPatch,
    broken_media: ModuleType,
    isolated: Isolated,
    tiny_config: PackConfig,
    tmp_path: Path,
    progress: object,
) -> None:
    """Fails when pictures of a process that broke are packed, or its documents are lost, which can be decoded alone."""
    for name in ("film", "0", "1"):
        write_video(tmp_path / f"{name}.mp4")
    outs = []
    for names in (("0", "1"), ("film", "film")):
        turns = [[{"type": "video", "video": f"{name}.mp4"}, {"type": "text", "text": "?"}] for name in names]
        rows = [
            {"id": str(number), "messages": [{"role": "user", "content": turn}, {"role": "assistant", "content": "!"}]}
            for number, turn in enumerate(turns)
        ]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        outs.append(tmp_path / f"out-{names[0]}")
        pack([str(tmp_path / "rows.jsonl")], str(outs[-1]), tiny_config, PlainExecutor(), progress)
        monkeypatch.setattr(media_calls, "_DECODER", isolated)
        monkeypatch.setattr(media_calls, "encoded_pictures", broken_media.pictures_and_a_crash)
    assert documents(outs[0]) == {"0", "1"}
    [alone], [crashed] = ([shard.read_bytes() for shard in sorted((out / "shards").glob("*.tar"))] for out in outs)
    assert crashed == alone


def test_a_machine_that_ends_the_decoder_ends_the_job_and_loses_no_document(
    monkeypatch: pytest.MonkeyPatch,
    broken: ModuleType,
    isolated: Isolated,
    tiny_source: Path,
    tiny_dataset: Path,
    tiny_config: PackConfig,
    tmp_path: Path,
    progress: object,
) -> None:
    """Fails when a kernel that is out of memory turns good documents into rejects."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(media_calls, "_DECODER", isolated)
        patch.setattr(media_calls, "encoded_crops", broken.killed)
        with pytest.raises(OSError, match="ended from outside"):
            pack([str(tiny_source)], str(out), tiny_config, PlainExecutor(), progress)
    assert not (out / "manifest.json").exists()
    pack([str(tiny_source)], str(out), tiny_config, PlainExecutor(), progress)
    assert documents(out) == documents(tiny_dataset)


def _crash_or_count(begun: str, word: str) -> str:
    """Runs in a Ray task, and notes that it has begun."""
    with Path(begun).open("a", encoding="utf-8") as file:
        file.write(f"{word}\n")
    helper = Isolated(Limits())
    try:
        return str(helper.call(*((len, word) if word else (os.abort,))))
    except CallFailedError as error:
        return str(error)
    finally:
        helper.close()


@pytest.mark.usefixtures("ray_session")
def test_a_crash_kills_no_ray_worker(tmp_path: Path) -> None:
    """Fails when a crashing decoder takes the task's process with it: Ray would run the task again in another."""
    from preshard.packer_service.runtime.ray import ray_cluster

    words = ["a", "", "abc", "", "ab", ""]
    with ray_cluster(None, None) as executor:
        found = dict(executor.run(partial(_crash_or_count, str(tmp_path / "begun")), words))
    crashed = "crashed (SIGABRT; its memory is limited to 512 MiB) in 2 of 2 tries"
    assert [found[i] for i in range(6)] == ["[1]", crashed, "[3]", crashed, "[2]", crashed]
    assert sorted((tmp_path / "begun").read_text(encoding="utf-8").splitlines()) == sorted(words)
