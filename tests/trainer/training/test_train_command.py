"""The command as a user runs it: alone, under torchrun, killed, and with options that do not fit."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed.run as torchrun
from click.testing import CliRunner
from lessons import given

from preshard.schemas.errors import PreshardError
from preshard.trainer.core.command import StopRequest, cli
from preshard.trainer.core.config import TrainConfig, make_config, option
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.setup import Job, prepare
from preshard.trainer.train import main, run


def steps_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def model_beside(data: Path) -> dict[str, object]:
    """The options that name a dataset and the model beside it, which has no weights."""
    return {"data": str(data), "model": str(data.with_name("model")), "from_scratch": True}


def train_whole(mesh: Mesh, options: dict[str, object], most: int) -> list[dict[str, Any]]:
    """The steps of one process, no more than ``most``; runs on a rank of the pool."""
    figures: list[dict[str, Any]] = []
    job = prepare(make_config(options), rank=0, world_size=1)
    run(
        job, mesh, torch.device("cpu"), lambda step: figures.append(asdict(step)), stop=lambda: len(figures) + 1 >= most
    )
    return figures


def torchrun_until_two_steps(rank: int, launch: list[str], metrics: str) -> tuple[int, str, str]:
    """Status of a torchrun that gets a signal once two steps are done, what the job prints, and what it says."""
    printed, said = Path(f"{metrics}.printed"), Path(f"{metrics}.said")
    copy = os.fork()
    if not copy:
        try:
            for stream, file in ((1, printed), (2, said)):
                os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
            launch_in_copies(launch)
            os._exit(0)
        except BaseException:  # of torchrun, which ends by one when a signal comes
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)
    while os.waitid(os.P_PID, copy, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if Path(metrics).exists() and Path(metrics).read_bytes().count(b"\n") >= 2:
            os.kill(copy, signal.SIGTERM)
            break
        time.sleep(0.05)
    status = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    return status, printed.read_text(encoding="utf-8"), said.read_text(encoding="utf-8")


def launch_in_copies(launch: list[str]) -> None:
    """``torchrun``, whose ranks are copies of this process: each would import for longer than it trains.

    ``tests/cluster/test_torchrun.py`` lets it start them from nothing.
    """
    read_options = torchrun.config_from_args

    def in_copies(options: Any) -> tuple[Any, Callable[..., None], list[str]]:
        config, program, arguments = read_options(options)
        assert [program, *arguments[:3]] == [sys.executable, "-u", "-m", "preshard.train"]
        return replace(config, start_method="fork"), train, arguments[3:]

    torchrun.config_from_args = in_copies
    torchrun.main(launch)


def train(*arguments: str) -> None:
    """The command on one of torchrun's ranks."""
    main(arguments)


def test_torchrun_trains_as_one_process_does_until_a_signal_ends_it(
    gloo_pool: Any, lessons: Path, tmp_path: Path
) -> None:
    """Fails when the command does not run under torchrun, when a key of the metrics is missing, or when ranks read more
    than their parts; when a preempted job loses what it did since its last checkpoint, or only one of its ranks stops.
    """
    metrics, common = tmp_path / "metrics.jsonl", {"dtype": "float64", "steps": 100000}
    launch = ["--standalone", "--nproc-per-node=2", "-m", "preshard.train", *given(lessons), "--dtype", "float64"]
    launch += ["--steps", "100000", "--ring", "2", "--attention", "ring", "--layout", "zigzag", "--log-every", "1"]
    launch += ["--checkpoint", str(tmp_path / "kept"), "--metrics", str(metrics)]
    [(status, printed, said)] = gloo_pool.run_apart(torchrun_until_two_steps, launch, str(metrics), size=1)
    assert status == 1, said
    both = steps_of(metrics)
    assert f"trainer: stopped by a signal after step {len(both)}; give --resume to continue" in said
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [f"step-{len(both):08d}"]
    assert "step      1  loss" in printed
    assert "step      2  loss" in printed
    one = gloo_pool.run(train_whole, {**model_beside(lessons), **common, "device": "cpu"}, 2)[0]
    for ours, theirs in zip(both[:2], one, strict=True):
        assert " ".join(ours) == (
            "step loss grad_norm tokens loss_weight step_time data_time bytes_read cached_bytes retries lr epoch packs "
            "tokens_per_second tflops predicted_work compute_times predicted_imbalance measured_imbalance eval_loss"
        )
        assert len(ours["predicted_work"]) == len(ours["compute_times"]) == 2
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-9)
        assert ours["loss_weight"] == pytest.approx(theirs["loss_weight"], rel=1e-12)
        assert (ours["packs"], ours["tokens"], ours["lr"]) == (theirs["packs"], theirs["tokens"], theirs["lr"])
    # both ranks read the header part, and each crop is read by one of them
    alone_read, both_read = (sum(step["bytes_read"] for step in steps[:2]) for steps in (one, both))
    assert alone_read < both_read < 2 * alone_read


def stopped_in_an_evaluation(
    mesh: Mesh, options: dict[str, object], asks: int
) -> tuple[int, list[tuple[int, float | None]]]:
    """The last step done, and steps with their evaluations, if the second rank is asked to stop when it looks for the
    ``asks``-th time. Runs on each rank of the pool.
    """
    looked, seen = [0], []

    def stop() -> bool:
        looked[0] += 1
        return mesh.cp.cp_rank == 1 and looked[0] >= asks

    job = prepare(make_config(options), rank=mesh.cp.cp_rank, world_size=2)
    done = run(job, mesh, torch.device("cpu"), lambda step: seen.append((step.step, step.eval_loss)), stop)
    return done, seen


@pytest.mark.parametrize(("asks", "evaluated"), [(3, False), (99, True)], ids=["in it", "never"])
def test_a_signal_in_an_evaluation_ends_it_and_saves(
    gloo_pool: Any, texts: Path, tmp_path: Path, asks: int, evaluated: bool
) -> None:
    """Fails when an evaluation goes on until the job is killed, which loses what was learnt since the last checkpoint;
    or when ranks leave it in different rounds, and wait for each other.
    """
    options = {**model_beside(texts), "steps": 2, "ring": 2, "layout": "zigzag", "checkpoint": str(tmp_path / "kept")}
    options |= {"eval_data": str(texts), "eval_every": 1, "device": "cpu"}
    for done, seen in gloo_pool.run(stopped_in_an_evaluation, options, asks, ring=2):
        assert done == (2 if evaluated else 1)
        assert [(step, loss is not None) for step, loss in seen] == (
            [(1, True), (2, True)] if evaluated else [(1, False)]
        )
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [f"step-{done:08d}"]


@pytest.fixture
def handlers() -> Iterator[None]:
    """Signals are handled afterwards as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_is_passed_on_as_well_is_one_signal(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the copy of a signal that torchrun passes on ends a rank before it has saved; or when Ctrl-C, once
    more and later, does not end it.
    """
    now = [100.0]
    monkeypatch.setattr("preshard.trainer.core.command.time.monotonic", lambda: now[0])
    stop = StopRequest()
    assert not stop()
    for now[0] in (100.0, 100.3, 104.0):
        signal.raise_signal(number)
        assert stop()
    ended = []
    monkeypatch.setattr("preshard.trainer.core.command.signal.raise_signal", ended.append)
    now[0] = 106.0
    os.kill(os.getpid(), number)
    assert ended == [number] * (number == signal.SIGINT)


def take_place(rank: int, world_size: int, port: int) -> None:
    """Gives a process that is one of several the variables that torchrun would give it."""
    if world_size > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
        os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in place.items()}})


def command_on_a_rank(rank: int, world_size: int, port: int, arguments: list[str]) -> tuple[object, str, str]:
    """Exit status, and what the command prints and says, in a process that has imported everything already."""
    take_place(rank, world_size, port)
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()) as said:
        try:
            main(arguments)
        except SystemExit as ended:
            return ended.code, printed.getvalue(), said.getvalue()
    return "went on", printed.getvalue(), said.getvalue()


def start_copy(
    place: tuple[int, int, int], arguments: list[str], said: Path, before: Callable[[], None] = lambda: None
) -> int:
    """Starts the command in a copy of this process, since it may end its process or be killed; the copy's id.

    Args:
        place: rank, number of ranks and port.
        arguments: of the command.
        said: what the command and its loader's workers write as errors.
        before: what the copy does before it begins.
    """
    copy = os.fork()
    if not copy:
        before()
        take_place(*place)
        sys.modules["__main__"] = ModuleType("__main__")  # a loader's workers would import that of the pool's ranks
        with said.open("w") as errors, Path(os.devnull).open("w") as printed:
            os.dup2(errors.fileno(), 2)
            with redirect_stdout(printed), redirect_stderr(errors):
                try:
                    main(arguments)
                finally:
                    errors.flush()
                    os._exit(2)  # it ends its process by itself when it fails in a step
    return copy


def command_stopped(rank: int, arguments: list[str], asks: int) -> tuple[object, str, str]:
    """The same of a command alone that finds a signal when it looks for one the ``asks``-th time."""
    looked = count(1)
    with patch("preshard.trainer.train.StopRequest", lambda: lambda: next(looked) >= asks):
        return command_on_a_rank(rank, 1, 0, arguments)


def command_in_a_copy(rank: int, world_size: int, port: int, arguments: list[str], folder: str) -> tuple[int, str]:
    """Exit status of a command that fails in a step, and what it says."""
    said = Path(folder, f"said-by-{rank}")
    copy = start_copy((rank, world_size, port), arguments, said)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]), said.read_text(encoding="utf-8")


def hold_writing(folder: Path) -> None:
    """Stops, from now on, every thread of this process that opens a file of a folder."""

    def hold(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(f"{folder}/"):
            threading.Event().wait()

    sys.addaudithook(hold)


def killed_when_there_is(rank: int, arguments: list[str], folder: str) -> int:
    """Status of a command that is killed while it writes into a folder: it does not come to the end of that."""
    copy = start_copy((rank, 1, 0), arguments, Path(os.devnull), lambda: hold_writing(Path(folder)))
    while not Path(folder).exists() and os.waitid(os.P_PID, copy, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.0005)
    os.kill(copy, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


def free_port() -> int:
    from free_ports import free_ports  # ranks of the pool, which load this file too, do not find it

    [port] = free_ports(1)
    return port


def test_killed_in_a_save_it_resumes_without_a_step_lost_or_repeated(
    gloo_pool: Any, texts: Path, tmp_path: Path
) -> None:
    """Fails when the command does not run without torchrun, or when ``kill -9`` in a save that goes on beside the steps
    leaves a checkpoint that stops the next start, or metrics that miss or repeat a step.
    """
    options = ["--steps", "7", "--dtype", "float64", "--save-every", "1", "--checkpoint", str(tmp_path / "kept")]
    options += ["--metrics", str(tmp_path / "metrics.jsonl"), "--resume", "--async-save"]
    unfinished = str(tmp_path / "kept" / "unfinished-step-00000003")
    [status] = gloo_pool.run_apart(killed_when_there_is, [*given(texts), *options], unfinished, size=1)
    assert status == -signal.SIGKILL
    assert len(steps_of(tmp_path / "metrics.jsonl")) < 7
    [(status, printed, said)] = gloo_pool.run_apart(command_on_a_rank, 1, 0, [*given(texts), *options], size=1)
    assert status == 0, said
    assert "continuing after step" in said
    assert "step      7  loss" in printed
    alone = {**model_beside(texts), "steps": 7, "dtype": "float64", "device": "cpu"}
    whole = gloo_pool.run(train_whole, alone, 7)[0]
    ours = steps_of(tmp_path / "metrics.jsonl")
    assert [(step["step"], step["packs"]) for step in ours] == [(step["step"], step["packs"]) for step in whole]
    assert [step["loss"] for step in ours] == pytest.approx([step["loss"] for step in whole], rel=1e-9)


@pytest.mark.parametrize("asks", [2, 99], ids=["in it", "never"])
def test_a_signal_in_the_last_evaluation_is_said_and_every_tracker_told(
    gloo_pool: Any, texts: Path, tmp_path: Path, asks: int
) -> None:
    """Fails when a run whose last evaluation was cut short looks like one that ends well; or when ``--report-to`` is
    taken and a step's figures, or those of an evaluation, do not reach its files.
    """
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    options = ["--steps", "1", "--eval-data", str(texts), "--checkpoint", str(tmp_path / "kept")]
    options += ["--metrics", str(tmp_path / "metrics.jsonl")]
    options += ["--report-to", "tensorboard", "--report-dir", str(tmp_path / "curves")]
    [(status, printed, said)] = gloo_pool.run_apart(command_stopped, [*given(texts), *options], asks, size=1)
    ends = said.splitlines()[-1] == "trainer: stopped by a signal in the evaluation after step 1, the last one"
    assert (status, ends, "eval loss" in printed) == ((1, True, False) if asks == 2 else (0, False, True)), said
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["step-00000001"]
    [step] = steps_of(tmp_path / "metrics.jsonl")
    curves = accumulator.EventAccumulator(str(tmp_path / "curves")).Reload()
    for name in ("loss", "grad_norm", *(["eval_loss"] if asks != 2 else [])):
        assert [(event.step, event.value) for event in curves.Scalars(name)] == [(1, pytest.approx(step[name]))]
    assert (step["eval_loss"] is None) == ("eval_loss" not in curves.Tags()["scalars"]) == (asks == 2)


def test_a_damaged_checkpoint_is_passed_over_and_set_aside(gloo_pool: Any, texts: Path, tmp_path: Path) -> None:
    """Fails when a run resumes from parameters with a flipped bit, or ends in a traceback; or when the steps that it
    does again cannot be saved where the damaged ones were.
    """
    options = ["--steps", "3", "--dtype", "float64", "--save-every", "1", "--checkpoint", str(tmp_path / "kept")]
    options += ["--metrics", str(tmp_path / "metrics.jsonl"), "--resume"]

    def command() -> str:
        [(status, _, said)] = gloo_pool.run_apart(command_on_a_rank, 1, 0, [*given(texts), *options], size=1)
        assert status == 0, said
        return str(said)

    assert "is damaged" not in command()
    whole = steps_of(tmp_path / "metrics.jsonl")
    part = tmp_path / "kept" / "step-00000003" / "__0_0.distcp"
    content = part.read_bytes()
    part.write_bytes(content[:-999] + bytes([content[-999] ^ 1]) + content[-998:])
    said = command()
    assert "trainer: the checkpoint step-00000003 is damaged, and passed over (__0_0.distcp has CRC-32C" in said
    assert "continuing after step 2" in said
    assert [step["loss"] for step in steps_of(tmp_path / "metrics.jsonl")] == [step["loss"] for step in whole]
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert names == {"step-00000002", "step-00000003", "damaged-step-00000003"}
    assert "continuing after step 3, the last one, from" in command()


MISFITS = {
    "heads": (["--ulysses", "16"], 16, "num_heads 8 over ulysses_degree = 16 ranks, which does not divide"),
    "kind": (["--ring", "2", "--attention", "reference"], 2, "attention is 'reference' on 2 context-parallel ranks"),
    "overlap": (["--overlap", "--attention", "ring"], 1, "--overlap needs attention ulysses or gather, not 'ring'"),
    "scheme": (["--layout", "spiral"], 1, "layout is 'spiral'; the dataset was packed for contiguous, zigzag"),
    "degree": (
        ["--ring", "16", "--layout", "balanced_ring"],
        16,
        "ring_degree is 16, and balanced_ring was packed for 1, 2, 4, 8",
    ),
    "weights": (["--data", "C:/other"], 1, "has no weight; write --data"),
    "processes": (["--ring", "2", "--dp-shard", "2"], 6, "6 processes cannot be divided by --dp-shard 2 x --ring 2"),
    "packs": (["--accumulate", "100"], 1, ": lower --accumulate, or start fewer processes"),
    "more ranks than packs": ([], 25, "dp_size is 25; the dataset has only 5 packs"),
    "model": (["--model", "huge"], 1, "--model is huge, which has no config.json; give the path of a model folder"),
    "steps": (["--steps", "0"], 1, "--steps is 0; give at least 1"),
    "rate": (["--lr", "-1"], 1, "--lr is -1.0; give more than 0"),
    "tracker": (
        ["--report-to", "tensorbord"],
        1,
        "--report-to is tensorbord; take 'tensorboard' or 'wandb'; did you mean tensorboard?",
    ),
    "resume": (["--resume"], 1, "--resume is given without --checkpoint"),
    "evaluation": (["--eval-every", "5"], 1, "--eval-every is given without --eval-data"),
    "offload": (["--offload", "disk"], 1, "add --recompute full or selective"),
    "save": (["--save-every", "5"], 1, "--save-every is given without --checkpoint"),
}


@pytest.mark.parametrize(("options", "world_size", "said"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_said_before_the_first_step(
    texts: Path, options: list[str], world_size: int, said: str
) -> None:
    """Fails when a run that cannot work starts, or is refused without naming the value and what would fit."""

    def start(*more: str, world_size: int) -> Job:
        config = cli.main([*given(texts), "--steps", "1", *more], standalone_mode=False)
        return prepare(config, rank=0, world_size=world_size)

    job = start(world_size=1)
    assert job.start.step == 0
    assert {"--lr": "left out", "--seed": "0"}.items() <= job.rank_invariants().items()
    with pytest.raises(PreshardError) as raised:
        start(*options, world_size=world_size)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_on_several_ranks_one_line_says_it_and_all_end(gloo_pool: Any, texts: Path) -> None:
    """Fails when a rank waits for others that have ended, our traceback is printed, or every rank prints the line."""
    arguments = [*given(texts), "--steps", "1", "--ring", "2", "--layout", "spiral"]
    first, second = gloo_pool.run_apart(command_on_a_rank, 2, free_port(), arguments, size=2)
    assert first[0] == second[0] == 2
    assert first[2].startswith("trainer: layout is 'spiral'; the dataset was packed for contiguous, zigzag")
    assert first[2].count("\n") == 1
    assert second[2] == ""


def test_what_one_rank_meets_ends_all_with_one_line(gloo_pool: Any, lessons: Path, tmp_path: Path) -> None:
    """Fails when ranks wait for one that met a damaged crop, when they add what they think of its end, or when an error
    from a loader's worker comes with a traceback.
    """
    damaged = Path(shutil.copytree(lessons.parent, tmp_path / "copy")) / "dataset"
    for shard in (damaged / "shards").glob("*.tar"):
        with tarfile.open(shard) as tar:
            pictures = [member for member in tar.getmembers() if member.name.endswith((".jpg", ".png"))]
        last_of_each = {picture.name.partition(".")[0]: picture for picture in pictures}  # the second rank reads it
        with shard.open("r+b") as file:
            for picture in last_of_each.values():
                file.seek(picture.offset_data + picture.size // 2)
                file.write(b"damaged")
    arguments = [*given(damaged), "--steps", "30", "--ring", "2", "--attention", "ring", "--workers", "1"]
    ranks = gloo_pool.run_apart(command_in_a_copy, 2, free_port(), arguments, str(tmp_path), size=2)
    assert [status for status, _ in ranks] == [1, 1]
    said = "".join(said for _, said in ranks)
    ours = [line for line in said.splitlines() if line.startswith("trainer: rank")]
    assert len(ours) == 1, said
    assert ours[0].startswith("trainer: rank 1: ")
    assert "CRC-32C" in ours[0]
    assert ".tar" in ours[0]
    assert "trainer/" not in said, "a traceback"


@pytest.mark.parametrize("wrong", ["nowhere", "--rings"])
def test_alone_a_misfit_ends_with_status_2(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    """Fails when a script cannot tell a wrong command from a failure, or gets more than one line."""
    options = {"nowhere": given(tmp_path / "nowhere"), "--rings": [*given(texts), "--rings", "2"]}
    with pytest.raises(SystemExit) as ended:
        main([*options[wrong], "--steps", "1", "--device", "cpu"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("trainer: ")
    assert said.count("\n") == 1
    assert wrong in said


def test_a_missing_option_is_named(texts: Path) -> None:
    """Fails when someone who left an option out reads how a library calls that."""
    for left_out, said in (
        ("--steps", "--steps is missing: add --steps STEPS"),
        ("--model", "--model is missing: add"),
    ):
        options = [*given(texts), "--steps", "1"]
        del options[options.index(left_out) : options.index(left_out) + 2]
        with pytest.raises(PreshardError, match=said):
            cli.main(options, standalone_mode=False)


def test_every_field_is_an_option_with_a_description() -> None:
    """Fails when an option has no description, or its name is not the field's."""
    shown = CliRunner().invoke(cli, ["--help"]).output
    for name, field in TrainConfig.model_fields.items():
        assert field.description, name
        assert option(name) in shown
