"""Objects of operators, held against the operators' own definitions where a package carries them, and against ours.

Ours, in ``definitions/``, say of a kind only what ``k8s/`` uses, and take every other field for a fault.
"""

from __future__ import annotations

import ast
import importlib.metadata
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from manifests import Object
from pydantic import ValidationError
from syntax import parse

DEFINITIONS = Path(__file__).parent / "definitions"
MODELS = "kubeflow/training/models"
PLAIN = {"int": int, "str": str, "bool": bool, "object": object, "datetime": str}


@cache
def our_definitions() -> dict[str, Any]:
    """Our schemas by kind."""
    schemas = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(DEFINITIONS.glob("*.yaml")))
    return {schema["properties"]["kind"]["const"]: schema for schema in schemas}


def operator_faults(thing: Object) -> Iterator[str]:
    """Fields that an operator's definition does not have, and values that it does not take.

    Raises:
        KeyError: nothing defines the kind.
    """
    kind = thing["kind"]
    yield from PUBLISHED[kind](thing) if kind in PUBLISHED else _faults_by_ours(thing)


def is_of_operator(thing: Object) -> bool:
    return thing["kind"] in PUBLISHED or thing["kind"] in our_definitions()


def _faults_by_ours(thing: Object) -> Iterator[str]:
    for error in jsonschema.Draft202012Validator(our_definitions()[thing["kind"]]).iter_errors(thing):
        yield f"{error.json_path}: {error.message}"


def _trainer_v2(thing: Object) -> Iterator[str]:
    """Faults found by kubeflow-trainer-api, whose models drop the fields that they do not know."""
    from kubeflow_trainer_api import models

    try:
        understood = getattr(models, f"TrainerV1alpha1{thing['kind']}").from_dict(thing)
    except ValidationError as error:
        yield from (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        return
    yield from _dropped(thing, understood.to_dict(), "$")


def _dropped(given: Any, kept: Any, path: str) -> Iterator[str]:
    if isinstance(given, dict):
        for name, value in given.items():
            if isinstance(kept, dict) and name in kept:
                yield from _dropped(value, kept[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}: no such field"
    elif isinstance(given, list):
        for number, value in enumerate(given):
            yield from _dropped(value, kept[number], f"{path}[{number}]")
    elif given != kept:
        yield f"{path}: {given!r} is read as {kept!r}"


def _training_v1(thing: Object) -> Iterator[str]:
    """Faults by the tables of fields in kubeflow-training's models, read without the client that its import needs."""
    yield from _by_table(thing, f"KubeflowOrgV1{thing['kind']}", "$")


def _by_table(given: Any, kind: str, path: str) -> Iterator[str]:
    if kind.startswith(("dict(", "list(")):
        inner = kind[5:-1].removeprefix("str, ")
        items = given.items() if isinstance(given, dict) else enumerate(given)
        yield from (fault for name, value in items for fault in _by_table(value, inner, f"{path}[{name}]"))
    elif kind in PLAIN:
        if not isinstance(given, PLAIN[kind]):
            yield f"{path}: {given!r} is no {kind}"
    elif kind.startswith("KubeflowOrg"):
        fields = _tables()[kind]
        for name, value in given.items():
            if name in fields:
                yield from _by_table(value, fields[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}: no such field"
    # what is left are Kubernetes' own types, which are checked by Kubernetes' schemas


@cache
def _tables() -> dict[str, dict[str, str]]:
    """The fields of each model and their types."""
    distribution = importlib.metadata.distribution("kubeflow-training")
    paths = [file for file in distribution.files or [] if str(file).startswith(f"{MODELS}/kubeflow_org_v1_")]
    return dict(_table(Path(str(distribution.locate_file(path)))) for path in paths)


def _table(path: Path) -> tuple[str, dict[str, str]]:
    [model] = [one for one in parse(path.read_text(encoding="utf-8")).body if isinstance(one, ast.ClassDef)]
    given = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in model.body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }
    return model.name, {key: given["openapi_types"][name] for name, key in given["attribute_map"].items()}


PUBLISHED: dict[str, Callable[[Object], Iterator[str]]] = {
    "PyTorchJob": _training_v1,
    "TrainJob": _trainer_v2,
    "TrainingRuntime": _trainer_v2,
}
