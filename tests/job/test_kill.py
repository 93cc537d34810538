"""The script that kills jobs, with one kill of a job without Ray; in full it takes half an hour.

That the same command continues after a signal is in tests/runtime/test_ray.py, that the tasks of lost workers run
elsewhere and that the loss of all of Ray ends the job with one line in tests/cluster/test_head.py, and that all of Ray
ends with a killed driver in tests/cluster/test_killed_driver.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_killed_job_ends_with_the_bytes_of_an_undisturbed_one() -> None:
    """Fails when a kill leaves a half-written file, another byte, a process or a work folder."""
    script = Path(__file__).with_name("kill.py")
    command = [sys.executable, str(script), "--kills", "1", "--phases", "write", "--who", "driver", "--plain"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 1 kills faulty; processes left at the end: []" in done.stdout
    [killed] = [line.split()[:2] for line in done.stdout.splitlines() if " ended with " in line]
    # on a busy machine a kill may come late, but not when the job has just ended
    assert killed in (["driver", "write"], ["driver", "finish"])
