"""Upload of a checkout by ``ray job submit``, as docs/cluster.md shows it: all that packing needs."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from dashboard import dashboard
from page import UPLOADING, submitted
from ray_nodes import Machine

MOST_BYTES = 4_000_000
"""Most bytes of the upload, which docs/cluster.md says is 3.6 MB."""

AS_FAR_AS_TORCH = (
    "import runpy, sys; sys.modules['torch'] = None; runpy.run_module('trainer.train', run_name='__main__')"
)
"""The trainer's command by its folder's name. Loading torch, its first import, takes seconds and shows nothing here."""


def test_what_is_uploaded_is_what_packs(
    machine: Machine, tiny_source: Path, tiny_dataset: Path, options: list[str], wheel: Path, tmp_path: Path
) -> None:
    """Fails when Ray does not take the page's command, or what is uploaded misses a file of ours, needs the project
    to be installed, does not pack with interpreted loops, or has datasets and data that lie there. That a head runs the
    command, and that its workers find what was uploaded, test_submit.py.
    """
    assert machine.run([machine.python, "-P", "-c", "import preshard"]).returncode, "not from the upload"
    words = submitted(UPLOADING, tiny_source, tmp_path / "uploaded", options)
    cloned = tmp_path / "cloned"
    shutil.copytree(wheel.parent / "source", cloned, symlinks=True)  # what git tracks
    shutil.copytree(tiny_dataset, cloned / "packed")
    (cloned / "data" / "videos").mkdir(parents=True)
    (cloned / "data" / "videos" / "one.mp4").write_bytes(bytes(10_000))
    (cloned / "own_form.py").write_text("def read(row): return row\n", encoding="utf-8")
    with dashboard() as (address, taken):
        status, said = machine.submit(address, words, folder=cloned)
    assert status == 0, said
    assert taken.command == words[words.index("--") + 1 :]
    assert len(taken.package) < MOST_BYTES
    checkout = taken.unpack(tmp_path / "checkout")
    assert (checkout / "own_form.py").exists()
    assert not [name for name in ("packed", "data", "README.md") if list((checkout / name).rglob("*.*"))]
    with zipfile.ZipFile(wheel) as whole:
        ours = {name: whole.read(name) for name in whole.namelist() if name.startswith("preshard/")}
    assert {"preshard/packer_service/job/pack.py", "preshard/trainer/train.py"} < ours.keys()
    assert {name: (checkout / name).read_bytes() for name in ours if (checkout / name).is_file()} == ours
    source, out = tmp_path / "rows.jsonl", tmp_path / "out"
    source.write_text('{"text": "one"}\n{"text": "two"}\n', encoding="utf-8")
    # interpreted, as on nodes that test_submit.py starts; and folders' names work where they were uploaded, too
    for module, packed_from, status in (("preshard", str(source), 0), ("packer_service", "/nowhere", 2)):
        ran = machine.run([machine.python, "-m", module, "pack", packed_from, "--out", str(out), *options], checkout)
        assert ran.returncode == status, ran.stderr
    assert ran.stderr.endswith("preshard: SOURCE /nowhere: no such file or folder\n")
    assert (out / "manifest.json").exists()
    trained = machine.run([machine.python, "-c", AS_FAR_AS_TORCH], checkout)
    assert "import of torch halted" in trained.stderr
    once = [path.relative_to(checkout).as_posix() for path in checkout.rglob("errors.py")]
    assert once == ["preshard/schemas/errors.py"]
