"""Settings that keep a pod harmless, whatever runs in it: Kubernetes' restricted standard, and some more."""

from __future__ import annotations

from collections.abc import Iterator

from manifests import Object, of_kind, pods, title

VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim"}
"""Kinds of volumes in use, of those that the restricted standard takes."""


def security_faults(objects: list[Object]) -> Iterator[str]:
    """Pods that could become root, write their own programs, talk to the cluster or use a node up."""
    for pod in pods(objects):
        spec, context = pod.spec, pod.spec.get("securityContext", {})
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.where}: mounts a token"
        if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
            yield f"{pod.where}: may run as root"
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod.where}: no seccomp profile"
        if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{pod.where}: shares the node's namespaces"
        if {"sysctls", "seLinuxOptions", "windowsOptions", "supplementalGroups"} & context.keys():
            yield f"{pod.where}: asks for more than its user"
        kinds = {kind for volume in spec["volumes"] for kind in volume.keys() - {"name"}}
        yield from (f"{pod.where}: a volume of the kind {kind}" for kind in kinds - VOLUMES)
        for container in pod.containers:
            yield from (f"{pod.where} {container['name']}: {fault}" for fault in _container_faults(container))
    for account in of_kind(objects, "ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"{title(account)}: mounts a token"
    for space in of_kind(objects, "Namespace"):
        if space["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"{title(space)}: takes pods that could become root"


def _container_faults(container: Object) -> Iterator[str]:
    context, resources = container.get("securityContext", {}), container.get("resources", {})
    if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
        yield "may gain privileges"
    if context.keys() - {"allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"}:
        yield f"has settings of its own: {sorted(context)}"
    if any("hostPort" in port or "hostIP" in port for port in container.get("ports", [])):
        yield "listens on the node"
    if context.get("readOnlyRootFilesystem") is not True:
        yield "writes to its root file system"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield "keeps capabilities"
    if not {"cpu", "memory"} <= resources.get("requests", {}).keys() or "memory" not in resources.get("limits", {}):
        yield "has no requests of CPU and memory, or no limit of memory"
    if not any(mount["mountPath"] == "/tmp" and not mount.get("readOnly") for mount in container["volumeMounts"]):
        yield "has no place to write to"
