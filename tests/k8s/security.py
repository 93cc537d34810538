"""Settings that keep a pod harmless, whatever runs in it."""

from __future__ import annotations

from collections.abc import Iterator

from manifests import Object, of_kind, pods, title


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
        yield from (f"{pod.where}: a path of the node" for volume in spec["volumes"] if "hostPath" in volume)
        for container in pod.containers:
            yield from (f"{pod.where} {container['name']}: {fault}" for fault in _container_faults(container))
    for account in of_kind(objects, "ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"{title(account)}: mounts a token"
    yield from _network_faults(objects)


def _container_faults(container: Object) -> Iterator[str]:
    context, resources = container.get("securityContext", {}), container.get("resources", {})
    if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
        yield "may gain privileges"
    if context.get("readOnlyRootFilesystem") is not True:
        yield "writes to its root file system"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield "keeps capabilities"
    if not {"cpu", "memory"} <= resources.get("requests", {}).keys() or "memory" not in resources.get("limits", {}):
        yield "has no requests of CPU and memory, or no limit of memory"
    if not any(mount["mountPath"] == "/tmp" and not mount.get("readOnly") for mount in container["volumeMounts"]):
        yield "has no place to write to"


def _network_faults(objects: list[Object]) -> Iterator[str]:
    policies = of_kind(objects, "NetworkPolicy")
    closed = [
        one for one in policies if one["spec"]["podSelector"] == {} and not one["spec"].keys() & {"ingress", "egress"}
    ]
    if not any(set(one["spec"]["policyTypes"]) == {"Ingress", "Egress"} for one in closed):
        yield "no NetworkPolicy closes the namespace"
    for policy in policies:
        for rule in policy["spec"].get("ingress", []):
            if not rule.get("from"):
                yield f"{title(policy)}: lets everyone in"
        selector = policy["spec"]["podSelector"]
        wanted = set(selector.get("matchLabels", {}).values())
        wanted |= {value for rule in selector.get("matchExpressions", []) for value in rule["values"]}
        labels = {label for pod in pods(objects) for label in pod.labels.values()}
        yield from (f"{title(policy)}: no pod is labelled {name}" for name in wanted - labels)
    for space in of_kind(objects, "Namespace"):
        if space["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"{title(space)}: takes pods that could become root"
