"""Rehearsal of what is measured on a GPU: it runs on a CPU, in small, and turns red where something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import load_script

HERE = Path(__file__).parent
FIGURES = {
    "exact": ("attention_exact_float32", "attention_exact_bfloat16", "models_exact"),
    "kernel": ("kernel_beside", "kernel_layouts_4096"),
    "step": ("step",),
    "feed": ("feed",),
    "learn": ("training",),
}
"""Files of each part."""

slow = pytest.mark.slow
process = pytest.mark.process


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    subprocess.run([sys.executable, HERE / "prepare.py", folder, "--small"], check=True)
    return folder


def rehearse(part: str, data: Path, out: Path, *more: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """The exit code, and the rows of each file."""
    command = [sys.executable, "-B", str(HERE / "run.py"), part, "--rehearse", "--data", str(data), "--out", str(out)]
    done = subprocess.run([*command, *more], check=False, cwd=out)
    return done.returncode, {path.stem: json.loads(path.read_text())["rows"] for path in sorted(out.glob("*.json"))}


@slow
@process
def test_what_a_gpu_reads_can_be_made(tmp_path: Path) -> None:
    """Fails when a name, a limit or a count that only the whole of it uses has moved: a card is lent for minutes."""
    subprocess.run([sys.executable, HERE / "prepare.py", tmp_path], check=True)
    made = {path.parent.name for path in tmp_path.glob("*/*/dataset") if (path / "manifest.json").exists()}
    assert made >= {"qwen3", "qwen3_vl", "gpt_oss", "gemma4"}
    expected = json.loads((tmp_path / "large" / "expected.json").read_text())
    assert all(case["dry run"] > 0 for case in expected.values())
    assert expected["selective"]["advise"] > 0


@slow
@process
def test_names_that_nothing_has_are_refused(data: Path, tmp_path: Path) -> None:
    """Fails when a slip of the pen measures everything."""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        subprocess.run(
            [sys.executable, str(HERE / "run.py"), "step", "--rehearse", "--data", str(data), "--only", "rings"],
            check=True, capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
    assert "--only names 'rings'; step has selective; " in failed.value.stderr


@slow
@process
@pytest.mark.parametrize("part", FIGURES)
def test_a_part_runs_on_a_cpu(data: Path, tmp_path: Path, part: str) -> None:
    """Fails when what a part calls of the trainer has moved, or when a row is red without a fault."""
    code, files = rehearse(part, data, tmp_path)
    assert code == 0, files
    assert files.keys() == set(FIGURES[part])
    assert all(files.values())
    assert json.loads((tmp_path / f"{FIGURES[part][0]}.json").read_text())["head"]["torch"]


@slow
@process
@pytest.mark.parametrize("fault", ["mask", "scale", "rank"])
def test_a_planted_fault_turns_the_table_red(data: Path, tmp_path: Path, fault: str) -> None:
    """Fails when a wrong mask, a wrong scale or a rank that is left out would pass on a GPU."""
    code, files = rehearse("exact", data, tmp_path, "--plant", fault)
    red = [row for row in files["attention_exact_float32"] if row["verdict"] == "APART"]
    assert code == 1
    assert len(red) >= len(files["attention_exact_float32"]) - (fault == "mask")  # one document has no edge


@slow
@process
def test_data_of_other_code_are_refused(data: Path, tmp_path: Path) -> None:
    """Fails when packs of another format would be measured, or not be read after all, on a machine lent for minutes."""
    (tmp_path / "code.txt").write_text("another")
    command = [sys.executable, str(HERE / "run.py"), "feed", "--rehearse", "--data", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "made by code another" in done.stderr
    assert "prepare.py" in done.stderr


def test_first_cases_meet_everything() -> None:
    """Fails when a run that is cut short has not met some kind, layout or form of mask."""
    exact = load_script(HERE / "exact.py")
    cases = exact.cases()
    assert len(cases) == len(set(cases)) > 100
    assert {kind for kind, _, _ in cases[:14]} == set(exact.KINDS)
    assert {form for _, _, form in cases[:14]} == set(exact.FORMS)
    assert {scheme for _, scheme, _ in cases[:14]} == set(exact.SCHEMES)
    assert len({(kind, form) for kind, _, form in cases}) == len(exact.KINDS) * len(exact.FORMS)


def test_a_peak_beyond_the_estimate_is_red() -> None:
    """Fails when a leak as large as one of each layer's outputs (29.97 GiB instead of 22.5) passes."""
    step = load_script(HERE / "step.py")
    assert step.check_memory(22.5, 21.8) == "ok"
    assert "1.37 of the estimate" in step.check_memory(29.97, 21.83)


def test_ranges_with_names_are_no_kernels() -> None:
    """Fails when FSDP's and the optimizer's ranges count as work of the device, which is then never idle."""
    step = load_script(HERE / "step.py")
    card, million = "DeviceType.CUDA", 1_000_000
    found = step.summary(
        [
            ("FSDP::pre_forward", 0, 100 * million, card),
            ("Optimizer.step#AdamW.step", 0, 100 * million, card),
            ("triton_flex_attention", 10 * million, 20 * million, card),
            ("nvjet_tst_128", 40 * million, 20 * million, card),
            ("Memcpy HtoD (Pageable -> Device)", 60 * million, 10 * million, card),
            ("cudaStreamSynchronize", 0, 5 * million, "DeviceType.CPU"),
        ]
    )
    assert found["idle ms"] == 10
    assert found["busy"] == pytest.approx(50 / 60)
    assert found["kernel kinds"] == {
        **dict.fromkeys(step.KINDS_OF_KERNELS, 0.0),
        "other": 0,
        "flex": 20,
        "products": 20,
    }
    assert found["pageable"] == 10
    assert found["host"] == {"cudaStreamSynchronize": 1, "cudaStreamSynchronize ms": 5}
