"""A job whose driver, one of whose workers or all of whose Ray is killed, by the script that kills jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "job" / "kill.py"


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_all_of_ray_ends_with_its_driver_and_a_lost_worker_costs_nothing() -> None:
    """Fails when a killed driver leaves processes of Ray or half of a file, or the loss of a worker ends the job, or
    that of all of Ray does not."""
    command = [sys.executable, str(SCRIPT), "--kills", "1", "--phases", "write", "--who", "driver", "worker", "ray"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 3 kills faulty; processes left at the end: []" in done.stdout


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_a_packed_dataset_is_packed_again_though_a_worker_is_lost() -> None:
    """Fails when the loss of a worker that copies out of a dataset ends the job, or leaves other bytes."""
    words = ["--repacked", "--plain", "--kills", "1", "--phases", "write", "--who", "worker"]
    command = [sys.executable, str(SCRIPT), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=350, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 1 kills faulty; processes left at the end: []" in done.stdout
