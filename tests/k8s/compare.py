"""Compares our definitions and the rendered manifests with operators' own definitions, by hand, once for a release.

    python tests/k8s/compare.py CRD.yaml ...

The files are CustomResourceDefinitions as the operators publish them. Each is named with its SHA-256, which
docs/cluster.md lists.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from manifests import OVERLAYS, Object, overlay, title
from operators import our_definitions


def strict(schema: Any) -> Any:
    """A structural schema as JSON Schema that refuses unknown fields, as server-side validation does."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    kept = {name: strict(value) for name, value in schema.items() if not name.startswith("x-")}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        kept.setdefault("additionalProperties", False)
    return kept


def wider(ours: Object, theirs: Object, path: str = "$") -> Iterator[str]:
    """Places where ours takes what theirs does not."""
    if "type" in ours and "type" in theirs and ours["type"] != theirs["type"]:
        yield f"{path}: {ours['type']}, and theirs is {theirs['type']}"
    unknown = set(ours.get("enum", [])) - set(theirs.get("enum", ours.get("enum", [])))
    if unknown:
        yield f"{path}: theirs does not take {sorted(map(str, unknown))}"
    yield from (f"{path}: requires {name}" for name in set(theirs.get("required", [])) - set(ours.get("required", [])))
    for name, inner in ours.get("properties", {}).items():
        if name in theirs.get("properties", {}):
            yield from wider(inner, theirs["properties"][name], f"{path}.{name}")
        elif name not in ("apiVersion", "kind", "metadata"):
            yield f"{path}.{name}: theirs has no such field"
    if "items" in ours and "items" in theirs:
        yield from wider(ours["items"], theirs["items"], f"{path}[]")


def main(paths: list[str]) -> int:
    """Prints what was compared and every difference. Returns the number of differences."""
    objects = [one for name in OVERLAYS for one in overlay(name)]
    return sum(_compare(Path(path), objects) for path in paths)


def _compare(path: Path, objects: list[Object]) -> int:
    definition = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
    print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)
    differences = 0
    for version in definition["versions"]:
        kind, api = definition["names"]["kind"], f"{definition['group']}/{version['name']}"
        held = [one for one in objects if (one["kind"], one["apiVersion"]) == (kind, api)]
        if not held:
            continue
        schema, ours = version["schema"]["openAPIV3Schema"], our_definitions().get(kind)
        found = list(wider(ours, schema)) if ours else []
        schema["properties"]["metadata"] = {"x-kubernetes-preserve-unknown-fields": True}
        checker = jsonschema.Draft202012Validator(strict(schema))
        found += [
            f"{title(one)} {error.json_path}: {error.message}" for one in held for error in checker.iter_errors(one)
        ]
        print(f"  {api} {kind}: {len(held)} objects{', and our definition' * bool(ours)}, {len(found)} differences")
        print("".join(f"  {fault}\n" for fault in found), end="")
        differences += len(found)
    return differences


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
