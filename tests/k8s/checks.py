"""Checks of rendered objects: each check gives one line for each fault it finds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import kubernetes_validate
import kubernetes_validate.utils
from commands import command_faults
from endings import ending_faults
from manifests import K8S, Object, pods, title
from network import network_faults
from operators import is_of_operator, operator_faults
from references import reference_faults
from security import security_faults

from preshard.schemas import VERSION

Check = Callable[[list[Object]], Iterator[str]]
KUBERNETES = "1.33"

# Read once: the library parses a megabyte of definitions for every object that it looks at.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)


def schema_faults(objects: list[Object]) -> Iterator[str]:
    """Unknown, missing and mistyped fields, by Kubernetes' schemas and by the operators' definitions."""
    for thing in objects:
        if is_of_operator(thing):
            yield from (f"{title(thing)}: {fault}" for fault in operator_faults(thing))
        else:
            yield from _kubernetes_faults(title(thing), thing)
    for pod in pods(objects):
        if is_of_operator(pod.owner):
            alone = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": pod.template}
            yield from _kubernetes_faults(pod.where, alone)


def _kubernetes_faults(where: str, thing: Object) -> Iterator[str]:
    yield from (f"{where}: {fault}" for fault in _kubernetes_fault(json.dumps(thing)))


@cache
def _kubernetes_fault(thing: str) -> tuple[str, ...]:
    """The first fault by Kubernetes' schemas. Kept, since most objects are in several overlays."""
    try:
        kubernetes_validate.validate(json.loads(thing), KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return (f"{'.'.join(map(str, error.path))}: {error.message}",)
    return ()


def image_faults(objects: list[Object]) -> Iterator[str]:
    """Images that no Dockerfile makes, or of another version than the code's. The registry is the place's."""
    built = {tag for path in dockerfiles() for tag in re.findall(r"-t (\S+)", path.read_text(encoding="utf-8"))}
    for pod in pods(objects):
        for container in pod.containers:
            image = container["image"].rpartition("/")[2]
            if image not in built:
                yield f"{pod.where}: image {image}; the Dockerfiles make {sorted(built)}"
            elif image.partition(":")[2].partition("-")[0] != VERSION:
                yield f"{pod.where}: image {image} is not of version {VERSION}"


def dockerfiles() -> list[Path]:
    return sorted((K8S / "images").glob("*.Dockerfile"))


CHECKS: dict[str, Check] = {
    "schemas": schema_faults,
    "commands": command_faults,
    "references": reference_faults,
    "images": image_faults,
    "security": security_faults,
    "network": network_faults,
    "endings": ending_faults,
}
