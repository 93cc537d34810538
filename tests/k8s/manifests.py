"""The overlays as kubectl renders them, and what is looked up in them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
OVERLAYS = ("local", "s3", "gpu")
Object = dict[str, Any]

# Where the kinds that make pods keep their templates; a list's items are all taken.
TEMPLATES = {
    "Deployment": [("spec", "template")],
    "Job": [("spec", "template")],
    "PyTorchJob": [("spec", "pytorchReplicaSpecs", "Worker", "template")],
    "RayJob": [
        ("spec", "submitterPodTemplate"),
        ("spec", "rayClusterSpec", "headGroupSpec", "template"),
        ("spec", "rayClusterSpec", "workerGroupSpecs", "template"),
    ],
}


def render(overlay: str) -> list[Object]:
    """The objects of ``kubectl kustomize k8s/overlays/OVERLAY``."""
    kubectl = Path(sys.executable).with_name("kubectl")
    command = [str(kubectl), "kustomize", str(REPOSITORY / "k8s" / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


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
        Pod(owner=thing, where=f"{title(thing)} {path[-2]}", template=template)
        for thing in objects
        for path in TEMPLATES.get(thing["kind"], [])
        for template in _at(thing, path)
    ]


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
