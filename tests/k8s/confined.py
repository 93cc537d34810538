"""Runs programs as a container's runtime does for the pods of ``k8s/``."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from manifests import K8S

USER = 10001
"""The user of every pod."""

WRITABLE = "/mnt"
"""Stands for a pod's /tmp and its volumes: what is in /tmp here has to stay readable."""

_DROP = f"setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs --bounding-set=-all"


def confined(words: Sequence[str], volume: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    """Starts a program as in a pod: not root, without capabilities, on a root file system that is read-only.

    Args:
        words: the program and its arguments.
        volume: a folder that lies at :data:`WRITABLE`; without one, memory lies there.
        environment: more variables. It gets little of the environment of this process.
    """
    at = f"--bind {volume}" if volume is not None else "-t tmpfs -o mode=1777 tmpfs"
    script = f'{_open_interpreter()}mount {at} {WRITABLE} && mount -o remount,ro,bind / && exec {_DROP} "$@"'
    places = dict.fromkeys(("HOME", "TMPDIR", "RAY_TMPDIR", "NUMBA_CACHE_DIR"), WRITABLE)
    kept = {"PATH": os.environ["PATH"], "PYTHONPATH": str(K8S.parent), "LANG": "C.UTF-8", **places, **environment}
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *words]
    return subprocess.Popen(command, env=kept, text=True, stderr=subprocess.PIPE, cwd="/")


def _open_interpreter() -> str:
    """Commands that lay the interpreter into an empty folder in place of one that is closed, as a home folder is."""
    prefix = Path(sys.base_prefix)
    closed = [folder for folder in reversed(prefix.parents) if not folder.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return ""
    steps = (
        f"mount --bind {prefix} {WRITABLE}",
        f"mount -t tmpfs -o mode=755 tmpfs {closed[0]}",
        f"mkdir -p {prefix}",
        f"mount --bind {WRITABLE} {prefix}",
    )
    return "".join(f"{step} && " for step in steps)
