"""Overlays and components are what Kubernetes, the operators and the code take; each check finds what is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broken import BROKEN, Broken
from checks import CHECKS
from manifests import COMPONENTS, K8S, OVERLAYS, Object, arguments, compose, of_kind, pods, render

Rendered = Callable[[str], list[Object]]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_has_no_fault(rendered: Rendered, overlay: str, check: str) -> None:
    """Fails when a manifest names a field, command, option, port, path, image or object that is not there, or a pod
    loses a setting that keeps it harmless.
    """
    assert list(CHECKS[check](rendered(overlay))) == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_alone_has_no_fault(component: str, tmp_path: Path) -> None:
    """Fails when a component renders only in the company that the overlays give it, or to something unsound."""
    objects = compose(tmp_path, component)
    assert objects
    faults = [fault for check in ("schemas", "security", "endings") for fault in CHECKS[check](objects)]
    assert faults == []


def test_every_component_is_in_an_overlay_or_tested_alone() -> None:
    """Fails when a new component is rendered by no test."""
    there = {str(path.parent.relative_to(K8S / "components")) for path in K8S.glob("components/**/kustomization.yaml")}
    assert there - set(COMPONENTS) == {"train/common"}


def folders_written(objects: list[Object]) -> list[str]:
    """Folders into which pods write for long: datasets and checkpoints."""
    given = [word for pod in pods(objects) for one in pod.containers for word in arguments(one, objects)]
    packed = [values["data"]["DATASET"] for values in of_kind(objects, "ConfigMap") if "DATASET" in values["data"]]
    checkpoints = [word.partition("=")[2] for word in given if word.startswith("--checkpoint=")]
    return checkpoints + packed[: len(of_kind(objects, "RayJob"))]


def test_nothing_runs_twice_on_one_folder(tmp_path: Path, rendered: Rendered) -> None:
    """Fails when one command starts two jobs, or two ways to train would take turns in one folder of checkpoints."""
    for overlay in OVERLAYS:
        jobs = [one for kind in ("RayJob", "TrainJob", "PyTorchJob", "Job") for one in of_kind(rendered(overlay), kind)]
        started = [one for one in jobs if "load" not in one["metadata"]["name"]]
        assert len(started) == (overlay.partition("/")[2].partition("-")[0] in ("pack", "train"))
    every = folders_written(compose(tmp_path, "storage/claim-mounts"))
    assert len(every) == len(set(every)) == 4


def test_keys_come_from_the_secret(tmp_path: Path) -> None:
    """Fails when a pod that reaches the object store is left without the keys."""
    for pod in pods(compose(tmp_path, "storage/keys")):
        secrets = {source.get("secretRef", {}).get("name") for source in pod.containers[0].get("envFrom", [])}
        assert ("preshard-s3" in secrets) == ("submitter" not in pod.where)


def test_a_digest_takes_the_place_of_a_tag(tmp_path: Path) -> None:
    """Fails when the images of some kind of object cannot be set by name and digest in a kustomization."""
    digest = "sha256:" + "0" * 64
    image = {"newName": "registry.example.com/one", "digest": digest}
    images = [{"name": f"preshard-{name}", **image} for name in ("pack", "serve", "train")]
    objects = compose(tmp_path, "storage/claim-mounts", images=images)
    assert {one["image"] for pod in pods(objects) for one in pod.containers} == {f"registry.example.com/one@{digest}"}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: f"{one.overlay}-{one.check}-{one.said}")
def test_a_broken_overlay_is_found(rendered: Rendered, broken: Broken) -> None:
    """Fails when a check has gone blind."""
    objects = rendered(broken.overlay)
    broken.change(objects)
    assert [fault for fault in CHECKS[broken.check](objects) if broken.said in fault]


def test_a_broken_overlay_is_not_rendered(tmp_path: Any) -> None:
    """Fails when kubectl's errors are not heard."""
    with pytest.raises(AssertionError, match="nowhere"):
        render(tmp_path / "nowhere")
