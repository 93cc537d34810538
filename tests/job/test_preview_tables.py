"""What packing a dataset again would give, from its tables alone, beside what packing it again gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer_service.config import load_config
from packer_service.job.pack import pack
from packer_service.job.preview_tables import plan_tables
from packer_service.report.dataset import report_dataset
from packer_service.runtime.executors import PlainExecutor
from packer_service.runtime.progress import Progress
from schemas.errors import ConfigError

EXACT = (
    "packs",
    "documents",
    "rejected",
    "source_documents",
    "tokens",
    "padding",
    "fill",
    "truncated_tokens",
    "left_out",
)


@pytest.mark.parametrize(
    "settings",
    [
        ["seq_len=2048", "ring_degrees=[1,2]", "max_images=40"],
        ["seq_len=512", "mixture={text: 1.5, images: 0}", "epochs=2", "order.seed=5"],
    ],
)
def test_the_tables_answer_as_packing_does(
    settings: list[str], tiny_dataset: Path, tmp_path: Path, progress: Progress
) -> None:
    """Fails when the answer in seconds is another one than packing again gives, also where documents no longer fit."""
    config = load_config(None, settings, [str(tiny_dataset)])
    planned = plan_tables([str(tiny_dataset)], config, progress)
    assert planned is not None
    pack([str(tiny_dataset)], str(tmp_path / "again"), config, PlainExecutor(), progress)
    given = report_dataset(str(tmp_path / "again"))
    assert {name: getattr(planned, name) for name in EXACT} == {name: getattr(given, name) for name in EXACT}
    assert {name: (share.share, share.asked) for name, share in planned.shares.items() if share.tokens} == {
        name: (share.share, share.asked) for name, share in given.shares.items() if share.tokens
    }


def test_what_tables_do_not_tell_is_measured(tiny_dataset: Path, tiny_source: Path, progress: Progress) -> None:
    """Fails when a document that would be cut, an id in two datasets or a row is answered for by lengths alone."""
    one, fresh = str(tiny_dataset), str(tiny_source)
    small = load_config(None, ["seq_len=512", "oversize=split"], [one])
    assert plan_tables([one], small, progress) is None
    same = load_config(None, [], [one])
    assert plan_tables([one, one + "/."], same, progress) is None
    assert plan_tables([one, fresh], same, progress) is None


def test_a_key_that_needs_the_source_is_refused(tiny_dataset: Path, progress: Progress) -> None:
    """Fails when the lengths of one frame rate are given as those of another."""
    config = load_config(None, ["video.fps=1"], [str(tiny_dataset)])
    with pytest.raises(ConfigError, match=r"video.fps: 1.0 cannot be had from dataset, .*frames are not sampled again"):
        plan_tables([str(tiny_dataset)], config, progress)
