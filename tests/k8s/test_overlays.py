"""Each overlay is what Kubernetes, the operators and the code take; each check finds what is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from checks import CHECKS
from manifests import OVERLAYS, Object, of_kind, pods, render

Rendered = Callable[[str], list[Object]]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_has_no_fault(rendered: Rendered, overlay: str, check: str) -> None:
    """Fails when a manifest names a field, command, option, port, path, image or object that is not there, or a pod
    loses a setting that keeps it harmless.
    """
    assert list(CHECKS[check](rendered(overlay))) == []


def one(objects: list[Object], kind: str, name: str = "") -> Any:
    [found] = [thing for thing in of_kind(objects, kind) if name in thing["metadata"]["name"]]
    return found


def pod(objects: list[Object], kind: str, number: int = 0) -> Any:
    return pods(of_kind(objects, kind))[number].spec


def container(objects: list[Object], kind: str, number: int = 0) -> Any:
    return pod(objects, kind, number)["containers"][0]


def replace(words: list[str], old: str, new: str) -> None:
    words[words.index(old)] = new


def take_away(objects: list[Object], kind: str, name: str) -> None:
    """Takes the object of the kind with the name away."""
    objects.remove(one(objects, kind, name))


# What is broken, the check that must say so, and a word of what it says.
BROKEN: list[tuple[str, str, Callable[[list[Object]], Any]]] = [
    ("schemas", "replica", lambda every: one(every, "Deployment")["spec"].update(replica=2)),
    ("schemas", "is not of type", lambda every: one(every, "Deployment")["spec"].update(replicas="two")),
    ("schemas", "probe", lambda every: container(every, "Deployment").update(probe={})),
    ("schemas", "entryPoint", lambda every: one(every, "RayJob")["spec"].update(entryPoint="preshard")),
    ("schemas", "'entrypoint' is a required", lambda every: one(every, "RayJob")["spec"].pop("entrypoint")),
    ("schemas", "cpus", lambda every: container(every, "RayJob", 2).update(cpus=2)),
    ("schemas", "Master", lambda every: one(every, "PyTorchJob")["spec"]["pytorchReplicaSpecs"].update(Master={})),
    ("commands", "No such option", lambda every: container(every, "Deployment")["args"].append("--prot")),
    ("commands", "No such command", lambda every: replace(container(every, "Deployment")["args"], "serve", "server")),
    ("commands", "serves on 8001", lambda every: replace(container(every, "Deployment")["args"], "8000", "8001")),
    (
        "commands",
        "beyond its pod",
        lambda every: replace(container(every, "Deployment")["args"], "0.0.0.0", "127.0.0.1"),
    ),
    (
        "commands",
        "readinessProbe asks",
        lambda every: container(every, "Deployment")["readinessProbe"]["httpGet"].update(path="/health"),
    ),
    ("commands", "comes from no Secret", lambda every: container(every, "Deployment")["env"].pop()),
    ("commands", "No such option", lambda every: container(every, "Job")["args"].append("--rings=2")),
    ("commands", "do not divide", lambda every: container(every, "Job")["args"].append("--ring=3")),
    ("commands", "does not pack", lambda every: container(every, "Job")["args"].append("--layout=spiral")),
    ("commands", "rendezvous at", lambda every: one(every, "Job")["metadata"].update(name="other")),
    ("commands", "waits for 2 nodes", lambda every: one(every, "Job")["spec"].update(completions=4, parallelism=4)),
    ("commands", "wait for ever", lambda every: one(every, "Job")["spec"].update(parallelism=1)),
    ("commands", "no headless", lambda every: one(every, "Service", "train")["spec"].pop("clusterIP")),
    (
        "commands",
        "waits for 2",
        lambda every: one(every, "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"].update(replicas=1),
    ),
    (
        "commands",
        "rendezvous at",
        lambda every: one(every, "PyTorchJob")["spec"]["elasticPolicy"].update(rdzvPort=29401),
    ),
    ("commands", "GPUs", lambda every: container(every, "Job")["args"].append("--device=cuda")),
    (
        "commands",
        "No such option",
        lambda every: one(every, "RayJob")["spec"].update(entrypoint="preshard pack a --output b"),
    ),
    ("commands", "runs preshard plan", lambda every: one(every, "RayJob")["spec"].update(entrypoint="preshard plan a")),
    ("commands", "not set", lambda every: container(every, "RayJob", 0).pop("envFrom")),
    ("commands", "rayVersion", lambda every: one(every, "RayJob")["spec"]["rayClusterSpec"].update(rayVersion="2.9.0")),
    ("references", "no ConfigMap", lambda every: take_away(every, "ConfigMap", "places")),
    ("references", "no PersistentVolumeClaim", lambda every: take_away(every, "PersistentVolumeClaim", "")),
    ("references", "no ServiceAccount", lambda every: pod(every, "RayJob", 1).update(serviceAccountName="default")),
    (
        "references",
        "no Secret",
        lambda every: container(every, "Job")["envFrom"].append({"secretRef": {"name": "mine"}}),
    ),
    (
        "references",
        "no Secret",
        lambda every: container(every, "Deployment")["env"][1]["valueFrom"]["secretKeyRef"].update(key="password"),
    ),
    ("references", "no volume", lambda every: pod(every, "PyTorchJob")["volumes"].pop(0)),
    ("references", "selects no pod", lambda every: one(every, "Service", "serve")["spec"]["selector"].update(a="b")),
    (
        "references",
        "no port",
        lambda every: one(every, "Service", "serve")["spec"]["ports"][0].update(targetPort="web"),
    ),
    ("references", "is of no part", lambda every: one(every, "Job")["metadata"]["labels"].clear()),
    ("references", "in namespace default", lambda every: one(every, "Job")["metadata"].update(namespace="default")),
    ("images", "preshard-train:latest", lambda every: container(every, "Job").update(image="preshard-train:latest")),
    (
        "security",
        "may run as root",
        lambda every: pod(every, "RayJob", 2)["securityContext"].update(runAsNonRoot=False),
    ),
    ("security", "no seccomp", lambda every: pod(every, "Job")["securityContext"].pop("seccompProfile")),
    ("security", "mounts a token", lambda every: pod(every, "RayJob", 0).pop("automountServiceAccountToken")),
    (
        "security",
        "mounts a token",
        lambda every: one(every, "ServiceAccount", "pack").pop("automountServiceAccountToken"),
    ),
    ("security", "node's namespaces", lambda every: pod(every, "PyTorchJob").update(hostNetwork=True)),
    ("security", "path of the node", lambda every: pod(every, "Job")["volumes"].append({"name": "h", "hostPath": {}})),
    ("security", "privileges", lambda every: container(every, "Job")["securityContext"].update(privileged=True)),
    (
        "security",
        "root file system",
        lambda every: container(every, "RayJob", 1)["securityContext"].pop("readOnlyRootFilesystem"),
    ),
    (
        "security",
        "capabilities",
        lambda every: container(every, "Deployment")["securityContext"].update(capabilities={}),
    ),
    ("security", "limit of memory", lambda every: container(every, "Deployment")["resources"].pop("limits")),
    ("security", "no place to write", lambda every: container(every, "Deployment")["volumeMounts"].pop(1)),
    ("security", "closes the namespace", lambda every: take_away(every, "NetworkPolicy", "deny")),
    ("security", "lets everyone in", lambda every: one(every, "NetworkPolicy", "serve")["spec"].update(ingress=[{}])),
    ("security", "no pod is labelled", lambda every: take_away(every, "PyTorchJob", "")),
    ("security", "takes pods", lambda every: one(every, "Namespace")["metadata"]["labels"].clear()),
    (
        "places",
        "a shell reads otherwise",
        lambda every: one(every, "ConfigMap", "places")["data"].update(SOURCE="s3://a?b&c"),
    ),
]


@pytest.mark.parametrize(("check", "said", "breaks"), BROKEN, ids=lambda value: value if isinstance(value, str) else "")
def test_a_broken_overlay_is_found(
    rendered: Rendered, check: str, said: str, breaks: Callable[[list[Object]], Any]
) -> None:
    """Fails when a check has gone blind."""
    objects = rendered("local")
    breaks(objects)
    assert [fault for fault in CHECKS[check](objects) if said in fault]


def test_a_broken_overlay_is_not_rendered(tmp_path: Any) -> None:
    """Fails when kubectl's errors are not heard."""
    with pytest.raises(AssertionError, match="nowhere"):
        render(str(tmp_path / "nowhere"))
