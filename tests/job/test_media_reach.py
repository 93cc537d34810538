"""Jobs whose rows name media outside of the source: what the command allows, what is rejected, and what is stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from listener import listening

from preshard.packer_service.cli import main
from preshard.packer_service.ingest.media.reach import AllowedMedia
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError

SECRET = "hunter2"


def _row(uri: str, text: str) -> dict[str, Any]:
    question = [{"type": "image", "image": uri}, {"type": "text", "text": "What?"}]
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": text}]}


def _said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out + captured.err


@pytest.fixture
def apart(tmp_path: Path, tiny_source: Path) -> tuple[Path, Path]:
    """A folder of rows and, elsewhere, one of images: a LLaVA file with absolute paths."""
    rows, images = tmp_path / "rows", tmp_path / "images"
    rows.mkdir()
    images.mkdir()
    for number in range(2):
        shutil.copy(tiny_source / f"{number}.png", images)
    lines = [{"text": "Only words."}, *(_row(f"{images}/{number}.png", f"A {number}.") for number in range(2))]
    (rows / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return rows, images


def test_absolute_paths_are_packed_where_the_command_allows_their_folder(
    apart: tuple[Path, Path], tmp_path: Path, tiny_config: PackConfig, progress: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when a row reaches a folder that nobody named, when report does not say with which option it would, or
    when that option does not help, also for the folder that was packed without it."""
    rows, images = apart
    refused, allowed = str(tmp_path / "refused"), str(tmp_path / "allowed")
    counts = pack([str(rows)], refused, tiny_config, PlainExecutor(), progress).manifest.counts
    assert (counts.documents, counts.rejected) == (1, 2)
    _, said = _said(capsys, "report", refused)
    assert "missing_media" in said
    assert f"--allow-media '{images}'" in " ".join(said.split())
    media = AllowedMedia(allow=(str(images),))
    counts = pack([str(rows)], allowed, tiny_config, PlainExecutor(), progress, media=media).manifest.counts
    assert (counts.documents, counts.rejected, counts.images) == (3, 0, 2)
    with pytest.raises(ConfigError, match=r"started with different input .*allow-media"):
        pack([str(rows)], refused, tiny_config, PlainExecutor(), progress, media=media)
    assert pack([str(rows)], allowed, tiny_config, PlainExecutor(), progress, media=media).already_done
    assert str(images) not in (tmp_path / "allowed/manifest.json").read_text()


def test_relative_paths_begin_at_the_media_root(
    apart: tuple[Path, Path], tmp_path: Path, tiny_config: PackConfig, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when --media-root is not where relative paths are looked for, or is itself relative to a task's folder."""
    rows, images = apart
    (rows / "rows.jsonl").write_text("\n".join(json.dumps(_row(f"{n}.png", f"B {n}.")) for n in range(2)))
    monkeypatch.chdir(tmp_path)
    media = AllowedMedia(roots=((None, "images"),))
    counts = pack(["rows"], str(tmp_path / "out"), tiny_config, PlainExecutor(), progress, media=media).manifest.counts
    assert (counts.documents, counts.rejected, counts.images) == (2, 0, 2)
    images.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"^--media-root images: no such file or folder"):
        pack(["rows"], str(tmp_path / "other"), tiny_config, PlainExecutor(), progress, media=media)


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("/nowhere", "--allow-media /nowhere: no such file or folder"),
        ("http://host/x", "--allow-media http://host/x: Unrecognized filesystem"),
        (f"nope://me:{SECRET}@host/x", "--allow-media nope://host/x: Unrecognized filesystem"),
        ("file://host/x", "--allow-media file://host/x: a file URI cannot name a host"),
        (f"hdfs://me:{SECRET}@127.0.0.1:1/x", "--allow-media hdfs://127.0.0.1:1/x: "),
        (
            f"s3://me:{SECRET}@b/x?endpoint_override=127.0.0.1:1&scheme=http&secret_key={SECRET}",
            "--allow-media s3://b/x?endpoint_override=127.0.0.1:1&scheme=http&secret_key=",
        ),
    ],
)
def test_a_wrong_prefix_is_one_line(
    tiny_source: Path, capsys: pytest.CaptureFixture[str], prefix: str, said: str
) -> None:
    """Fails when a prefix that cannot be read ends in a traceback or is ignored, or its password is shown."""
    status, line = _said(capsys, "show", str(tiny_source), "--allow-media", prefix)
    assert status == 2
    assert line.startswith(f"preshard: {said}")
    assert len(line.strip().splitlines()) == 1
    assert SECRET not in line


def test_no_secret_of_a_uri_is_stored_or_shown(
    apart: tuple[Path, Path],
    tmp_path: Path,
    tiny_config: PackConfig,
    progress: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Fails when user info or a signature in a row's URI is in any file of a dataset or of an unfinished job, or in
    what show and report say; or when one of these rows makes a connection."""
    rows, _ = apart
    with listening() as listener:
        uris = (
            f"s3://KEY:{SECRET}@bucket/x.png",
            f"s3://KEY:{SECRET}@{listener.address}/x.png?endpoint_override={listener.address}&scheme=http",
            f"https://me:{SECRET}@{listener.address}/x.png",
            f"https://{listener.address}/x.png?X-Amz-Signature={SECRET}",
            f"s3://bucket/x.png?secret_key={SECRET}&endpoint_override={listener.address}",
            f"s3://KEY:{SECRET}/slash@bucket/x.png",
            f"abfs://account:{SECRET}@{listener.address}/x.png",
            f"file://me:{SECRET}@host/x.png",
            f"none.png?sig={SECRET}",
            f"\0s3://KEY:{SECRET}@bucket/x.png",
        )
        lines = [*(_row(uri, "An answer.") for uri in uris), {"text": "Only words."}]
        lines.append({"messages": [{"role": f"s3://KEY:{SECRET}@bucket", "content": "x"}]})
        (rows / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
        out = tmp_path / "out"
        pack([str(rows)], str(out), tiny_config, PlainExecutor(), progress)
        rejects = pq.read_table(out / "rejects.parquet").to_pylist()
        assert [row["code"] for row in rejects] == ["missing_media"] * 9 + ["bad_row"] * 2
        words = json.dumps(rejects)
        for number in range(1, len(lines) + 1):
            if number != len(uris) + 1:
                with pytest.raises(SystemExit):
                    main(["show", str(rows), "--row", str(number)])
        for command in (["report", str(out)], ["report", str(out), "--json"], ["verify", str(out)]):
            with pytest.raises(SystemExit):
                main(command)
        assert not listener.heard
    shown = capfd.readouterr()
    words += shown.out + shown.err
    assert words.count("would be rejected") == len(lines) - 1
    assert SECRET not in words
    for path in out.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    tables = [pq.read_table(path).to_pylist() for path in out.glob("*.parquet")]
    assert SECRET not in repr(tables)
