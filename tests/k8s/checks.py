"""What is asked of rendered objects: each check gives one line for each fault it finds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from commands import command_faults
from manifests import REPOSITORY, Object, of_kind, pods, title
from references import reference_faults
from security import security_faults

from schemas.version import VERSION

Check = Callable[[list[Object]], Iterator[str]]
KUBERNETES = "1.33"


@cache
def _operators_schemas() -> dict[str, Any]:
    files = (REPOSITORY / "tests" / "k8s" / "operators").glob("*.yaml")
    schemas = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in files)
    return {schema["properties"]["kind"]["const"]: schema for schema in schemas}


def schema_faults(objects: list[Object]) -> Iterator[str]:
    """Unknown, missing and mistyped fields, by Kubernetes' schemas and by what the operators document."""
    for thing in objects:
        if thing["kind"] in _operators_schemas():
            for error in jsonschema.Draft202012Validator(_operators_schemas()[thing["kind"]]).iter_errors(thing):
                yield f"{title(thing)}: {error.json_path}: {error.message}"
        else:
            yield from _kubernetes_faults(title(thing), thing)
    for pod in pods(objects):
        if pod.owner["kind"] in _operators_schemas():
            alone = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": pod.template}
            yield from _kubernetes_faults(pod.where, alone)


def _kubernetes_faults(where: str, thing: Object) -> Iterator[str]:
    try:
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{where}: {'.'.join(map(str, error.path))}: {error.message}"


def image_faults(objects: list[Object]) -> Iterator[str]:
    """Images that no Dockerfile makes, or of another version than the code's."""
    built = {tag for path in dockerfiles() for tag in re.findall(r"-t (\S+)", path.read_text(encoding="utf-8"))}
    for pod in pods(objects):
        for container in pod.containers:
            if container["image"] not in built:
                yield f"{pod.where}: image {container['image']}; the Dockerfiles make {sorted(built)}"
            elif container["image"].partition(":")[2].partition("-")[0] != VERSION:
                yield f"{pod.where}: image {container['image']} is not of version {VERSION}"


def dockerfiles() -> list[Path]:
    return sorted((REPOSITORY / "k8s" / "images").glob("*.Dockerfile"))


def place_faults(objects: list[Object]) -> Iterator[str]:
    """Places that a shell, through which they pass on their way to the job, would change."""
    for thing in of_kind(objects, "ConfigMap"):
        for name, value in thing["data"].items():
            if "\n" not in value and shlex.quote(value) != value:
                yield f"{title(thing)}: {name} is {value}, which a shell reads otherwise"


CHECKS: dict[str, Check] = {
    "schemas": schema_faults,
    "commands": command_faults,
    "references": reference_faults,
    "images": image_faults,
    "security": security_faults,
    "places": place_faults,
}
