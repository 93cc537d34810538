"""The overlays as kubectl renders them, and what is looked up in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
K8S = REPOSITORY / "k8s"
OVERLAYS = tuple(
    str(path.parent.relative_to(K8S / "overlays"))
    for path in sorted(K8S.glob("overlays/*/*/kustomization.yaml"))
    if path.parent.name != "place"
)
"""Overlays that the page applies: ``PLACE/PART``."""

ALONE = ("places", "pack", "serve", "load", "monitoring", "storage/claim", "storage/bucket")
TRAINERS = ("train/job", "train/trainjob", "train/pytorchjob")
"""One kustomization takes one of them: they share an account, and a second is an error."""
CHANGES: dict[str, tuple[str, ...]] = {
    **{f"storage/{name}": () for name in ("claim-mounts", "bucket-mounts", "identity", "keys")},
    "queue": (),
    "gpu": (),
    "rdma": ("gpu",),
}
"""Components that change what others bring, and what they come after."""
COMPONENTS = (*ALONE, *TRAINERS, *CHANGES)

Object = dict[str, Any]

# Where the kinds that make pods keep their templates; a list's items are all taken.
TEMPLATES = {
    "Deployment": [("spec", "template")],
    "Job": [("spec", "template")],
    "PyTorchJob": [("spec", "pytorchReplicaSpecs", "Worker", "template")],
    "TrainingRuntime": [("spec", "template", "spec", "replicatedJobs", "template", "spec", "template")],
    "RayJob": [
        ("spec", "submitterPodTemplate"),
        ("spec", "rayClusterSpec", "headGroupSpec", "template"),
        ("spec", "rayClusterSpec", "workerGroupSpecs", "template"),
    ],
}


def render(folder: Path) -> list[Object]:
    """The objects of ``kubectl kustomize FOLDER``."""
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run([str(kubectl), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def overlay(name: str) -> list[Object]:
    """An overlay's objects, and those of its place's ``setup``, which is applied first."""
    setup = f"{name.partition('/')[0]}/setup"
    return [*_setup(setup), *(render(K8S / "overlays" / name) if name != setup else [])]


@cache
def _setup(name: str) -> list[Object]:
    """Rendered once: it comes with every overlay of its place."""
    return render(K8S / "overlays" / name)


def compose(folder: Path, component: str, **more: Any) -> list[Object]:
    """The objects of a component alone, or of all that it changes, by kustomizations written into the folder.

    ``more`` are further fields of the kustomizations.
    """
    if component not in CHANGES:
        _write(folder, components=_paths(folder, (component,)), **more)
        return render(folder)
    rest = (*CHANGES[component], component)
    with_first = ("places", "pack", "serve", "load", TRAINERS[0], *rest)
    groups = {"one": with_first, "two": ("places", TRAINERS[1], *rest), "three": ("places", TRAINERS[2], *rest)}
    for name, group in groups.items():
        (folder / name).mkdir()
        # namespaces of their own, so that one command renders what may not stand in one kustomization
        _write(folder / name, components=_paths(folder / name, group), namespace=name, **more)
    _write(folder, resources=list(groups))
    return render(folder)


def _paths(folder: Path, components: Sequence[str]) -> list[str]:
    return [os.path.relpath(K8S / "components" / name, folder.resolve()) for name in components]


def _write(folder: Path, **fields: Any) -> None:
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({**kind, **fields}), encoding="utf-8")


def title(thing: Object) -> str:
    return f"{thing['kind']}/{thing['metadata']['name']}"


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [thing for thing in objects if thing["kind"] == kind]


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod template, and where it is from."""

    owner: Object
    where: str
    template: Object

    @property
    def spec(self) -> Object:
        spec: Object = self.template["spec"]
        return spec

    @property
    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.template["metadata"]["labels"]
        return labels

    @property
    def containers(self) -> list[Object]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


def pods(objects: list[Object]) -> list[Pod]:
    """The templates of all pods that the objects make."""
    return [
        Pod(owner=thing, where=f"{title(thing)} {_place(path)}", template=template)
        for thing in objects
        for path in TEMPLATES.get(thing["kind"], [])
        for template in _at(thing, path)
    ]


def _place(path: tuple[str, ...]) -> str:
    """Name of the pod, among its owner's, that a template belongs to."""
    return next((part for part in reversed(path) if part not in ("template", "spec")), "spec")


def _at(thing: Any, path: tuple[str, ...]) -> Iterator[Object]:
    if isinstance(thing, list):
        for item in thing:
            yield from _at(item, path)
    elif not path:
        yield thing
    elif path[0] in thing:
        yield from _at(thing[path[0]], path[1:])


def environment(container: Object, objects: list[Object]) -> dict[str, str]:
    """Variables of a container whose values the objects hold."""
    maps = {thing["metadata"]["name"]: thing["data"] for thing in of_kind(objects, "ConfigMap")}
    values: dict[str, str] = {}
    for source in container.get("envFrom", []):
        if "configMapRef" in source:
            values |= maps.get(source["configMapRef"]["name"], {})
    return values | {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}


def arguments(container: Object, objects: list[Object]) -> list[str]:
    """A container's arguments with the $(NAME) in them filled in, as the kubelet does; a name without a value stays."""
    values = environment(container, objects)
    return [
        re.sub(r"\$\((\w+)\)", lambda match: values.get(match[1], match[0]), argument)
        for argument in container.get("args", [])
    ]
