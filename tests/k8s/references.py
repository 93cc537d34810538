"""Names and selectors in the manifests, held against the objects there are."""

from __future__ import annotations

from collections.abc import Iterator

from manifests import Object, Pod, of_kind, pods, title

# Made by hand, as docs/cluster.md says: their values are in no file.
SECRETS = {"preshard-token": {"token"}, "preshard-s3": {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}}
PARTS = ("store", "load", "pack", "serve", "train", "monitoring")
PART = "app.kubernetes.io/component"
OF_THE_CLUSTER = ("Namespace", "PersistentVolume")


def reference_faults(objects: list[Object]) -> Iterator[str]:
    """Names and selectors of what is not there when a part is applied after its place's setup."""
    names = {
        kind: {thing["metadata"]["name"] for thing in of_kind(objects, kind)}
        for kind in ("ConfigMap", "PersistentVolumeClaim", "ServiceAccount")
    }
    for pod in pods(objects):
        yield from _missing_references(pod, names)
    for monitor in of_kind(objects, "ServiceMonitor"):
        used = [one["authorization"]["credentials"] for one in monitor["spec"]["endpoints"]]
        yield from (
            f"{title(monitor)}: no Secret {one}" for one in used if one["key"] not in SECRETS.get(one["name"], ())
        )
    yield from _selector_faults(objects)
    for thing in objects:
        if thing["metadata"]["labels"].get(PART) not in PARTS:
            yield f"{title(thing)}: is of no part"
        if thing["metadata"].get("namespace") != "preshard" and thing["kind"] not in OF_THE_CLUSTER:
            yield f"{title(thing)}: is in namespace {thing['metadata'].get('namespace')}"


def _missing_references(pod: Pod, names: dict[str, set[str]]) -> Iterator[str]:
    used = [("ServiceAccount", pod.spec.get("serviceAccountName"))]
    for volume in pod.spec.get("volumes", []):
        used += [
            ("PersistentVolumeClaim", volume[key]["claimName"]) for key in volume if key == "persistentVolumeClaim"
        ]
        used += [("ConfigMap", volume[key]["name"]) for key in volume if key == "configMap"]
    for container in pod.containers:
        for source in container.get("envFrom", []):
            used += [("ConfigMap", source[key]["name"]) for key in source if key == "configMapRef"]
            secrets = {source[key]["name"] for key in source if key == "secretRef"}
            yield from (f"{pod.where}: no Secret {name}" for name in secrets - SECRETS.keys())
        for variable in container.get("env", []):
            key = variable.get("valueFrom", {}).get("secretKeyRef")
            if key and key["key"] not in SECRETS.get(key["name"], set()):
                yield f"{pod.where}: no Secret {key['name']} with the key {key['key']}"
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        kept = {volume["name"] for volume in pod.spec["volumes"]}
        yield from (f"{pod.where}: mounts {name}, which is no volume" for name in mounted - kept)
    yield from (f"{pod.where}: no {kind} {name}" for kind, name in used if name not in names[kind])


def _selector_faults(objects: list[Object]) -> Iterator[str]:
    for service in of_kind(objects, "Service"):
        selected = [pod for pod in pods(objects) if service["spec"]["selector"].items() <= pod.labels.items()]
        if not selected:
            yield f"{title(service)}: selects no pod"
        named = {port["name"] for pod in selected for one in pod.containers for port in one.get("ports", [])}
        yield from (
            f"{title(service)}: no port {port['targetPort']}"
            for port in service["spec"]["ports"]
            if port["targetPort"] not in named
        )
    for owner in of_kind(objects, "Deployment"):
        if not owner["spec"]["selector"]["matchLabels"].items() <= pods([owner])[0].labels.items():
            yield f"{title(owner)}: does not select its own pods"
