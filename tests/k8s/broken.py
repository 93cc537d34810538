"""Overlays that are broken on purpose: one change each, and what a check must say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from manifests import Object, of_kind, pods

GONE = object()
"""The value of what a change takes away."""
MAIN = "~/containers/0"


@dataclass(frozen=True, kw_only=True)
class Broken:
    """Fault of an overlay: the ``value`` at a ``path`` of the one object of a kind whose name has ``name`` in it.

    A path that begins with ``~`` begins at the specification of a pod, ``~1`` at that of the object's second one; ``-``
    stands for the place after a list's last item, and the empty path for the object itself.
    """

    overlay: str
    check: str
    said: str
    thing: str
    path: str
    value: Any

    def change(self, objects: list[Object]) -> None:
        kind, _, name = self.thing.partition("/")
        [found] = [one for one in of_kind(objects, kind) if name in one["metadata"]["name"]]
        if not self.path:
            objects.remove(found)
            return
        *parents, last = self.path.split("/")
        place: Any = found
        if parents and parents[0].startswith("~"):
            place = pods([found])[int(parents.pop(0)[1:] or 0)].spec
        for part in parents:
            place = place[int(part) if isinstance(place, list) else part]
        if isinstance(place, list):
            place.insert(len(place) if last == "-" else int(last), self.value)
        elif self.value is GONE:
            del place[last]
        else:
            place[last] = self.value


WORKER = "spec/pytorchReplicaSpecs/Worker"
JOBSET = "spec/template/spec"

ROWS = {
    "local/serve schemas": [
        ("replica", "Deployment", "spec/replica", 2),
        ("is not of type", "Deployment", "spec/replicas", "two"),
        ("probe", "Deployment", f"{MAIN}/probe", {}),
    ],
    "local/pack schemas": [
        ("entryPoint", "RayJob", "spec/entryPoint", "preshard"),
        ("'entrypoint' is a required", "RayJob", "spec/entrypoint", GONE),
        ("cpus", "RayJob", "~2/containers/0/cpus", 2),
    ],
    "share/train-v1 schemas": [
        ("backOffLimit: no such", "PyTorchJob", "spec/runPolicy/backOffLimit", 2),
        ("is no int", "PyTorchJob", "spec/runPolicy/backoffLimit", "2"),
    ],
    "share/train schemas": [
        ("numProcs: no such", "TrainJob", "spec/trainer/numProcs", 2),
        ("numNodes", "TrainJob", "spec/trainer/numNodes", "two"),
        ("mlPolicies: no such", "TrainingRuntime", "spec/mlPolicies", {}),
    ],
    "share/setup schemas": [
        ("queues", "LocalQueue", "spec/queues", []),
    ],
    "share/monitoring schemas": [
        ("bearer", "ServiceMonitor", "spec/bearer", "a"),
        ("ports", "PodMonitor", "spec/ports", []),
        ("rate", "PrometheusRule", "spec/groups/0/rate", 1),
    ],
    "local/serve commands": [
        ("No such option", "Deployment", f"{MAIN}/args/-", "--prot"),
        ("No such command", "Deployment", f"{MAIN}/args/0", "server"),
        ("serves on 8001", "Deployment", f"{MAIN}/args/-", "--port=8001"),
        ("beyond its pod", "Deployment", f"{MAIN}/args/-", "--host=127.0.0.1"),
        ("readinessProbe asks", "Deployment", f"{MAIN}/readinessProbe/httpGet/path", "/health"),
        ("comes from no Secret", "Deployment", f"{MAIN}/env/1/valueFrom", {}),
    ],
    "local/train commands": [
        ("No such option", "Job", f"{MAIN}/args/-", "--rings=2"),
        ("cannot be divided by", "Job", f"{MAIN}/args/-", "--ring=3"),
        ("does not pack", "Job", f"{MAIN}/args/-", "--layout=spiral"),
        ("rendezvous at", "Job", "metadata/name", "other"),
        ("waits for 2 nodes", "Job", "spec/completions", 4),
        ("wait for ever", "Job", "spec/parallelism", 1),
        ("no headless", "Service/train", "spec/clusterIP", GONE),
        ("GPUs", "Job", f"{MAIN}/args/-", "--device=cuda"),
        ("not set", "Job", f"{MAIN}/envFrom", GONE),
    ],
    "share/train-v1 commands": [
        ("waits for 2", "PyTorchJob", f"{WORKER}/replicas", 1),
        ("rendezvous at", "PyTorchJob", "spec/elasticPolicy/rdzvPort", 29401),
    ],
    "share/train commands": [
        ("waits for 3", "TrainJob", "spec/trainer/numNodes", 3),
        ("GPUs", "TrainJob", "spec/trainer/numProcPerNode", 4),
        ("does not find the container", "TrainingRuntime", f"{MAIN}/name", "train"),
        ("of the whole cluster", "TrainJob", "spec/runtimeRef/kind", "ClusterTrainingRuntime"),
    ],
    "local/pack commands": [
        ("the head has", "RayJob", "spec/entrypoint", "sh /etc/pack.sh"),
        ("runs preshard verify", "ConfigMap/pack", "data/pack.sh", "preshard verify $DATASET"),
        ("No such option", "ConfigMap/pack", "data/pack.sh", "preshard pack $SOURCE --output $DATASET"),
        ("is not there", "ConfigMap/pack", "data/pack.sh", "preshard pack a --out b --config c"),
        ("seq_length", "ConfigMap/pack", "data/pack.yaml", "seq_length: 10"),
        ("$SOURCE", "RayJob", "~1/containers/0/envFrom", GONE),
        ("rayVersion", "RayJob", "spec/rayClusterSpec/rayVersion", "2.9.0"),
        ("are exported on", "RayJob", "~1/containers/0/ports", []),
    ],
    "local/serve references": [
        ("no ConfigMap", "ConfigMap/places", "", GONE),
        ("no PersistentVolumeClaim", "PersistentVolumeClaim", "", GONE),
        ("no Secret", "Deployment", f"{MAIN}/env/1/valueFrom/secretKeyRef/key", "password"),
        ("selects no pod", "Service", "spec/selector/a", "b"),
        ("no port", "Service", "spec/ports/0", {"name": "web", "targetPort": "web"}),
    ],
    "local/pack references": [
        ("no ServiceAccount", "RayJob", "~1/serviceAccountName", "default"),
    ],
    "local/train references": [
        ("no Secret", "Job", f"{MAIN}/envFrom/-", {"secretRef": {"name": "mine"}}),
        ("is of no part", "Job", "metadata/labels", {}),
        ("in namespace default", "Job", "metadata/namespace", "default"),
        ("no volume", "Job", "~/volumes", []),
    ],
    "cloud/monitoring references": [
        ("no Secret", "ServiceMonitor", "spec/endpoints/0/authorization/credentials/name", "other"),
    ],
    "local/train images": [
        ("preshard-train:latest", "Job", f"{MAIN}/image", "preshard-train:latest"),
    ],
    "local/pack security": [
        ("may run as root", "RayJob", "~2/securityContext/runAsNonRoot", False),
        ("mounts a token", "RayJob", "~/automountServiceAccountToken", GONE),
        ("mounts a token", "ServiceAccount", "automountServiceAccountToken", GONE),
        ("root file system", "RayJob", "~1/containers/0/securityContext/readOnlyRootFilesystem", GONE),
    ],
    "local/train security": [
        ("no seccomp", "Job", "~/securityContext/seccompProfile", GONE),
        ("of the kind hostPath", "Job", "~/volumes/-", {"name": "h", "hostPath": {}}),
        ("more than its user", "Job", "~/securityContext/sysctls", []),
        ("settings of its own", "Job", f"{MAIN}/securityContext/runAsUser", 0),
        ("privileges", "Job", f"{MAIN}/securityContext/privileged", True),
        ("node's namespaces", "Job", "~/hostNetwork", True),
    ],
    "local/serve security": [
        ("on the node", "Deployment", f"{MAIN}/ports/0/hostPort", 80),
        ("capabilities", "Deployment", f"{MAIN}/securityContext/capabilities", {}),
        ("limit of memory", "Deployment", f"{MAIN}/resources/limits", GONE),
        ("no place to write", "Deployment", f"{MAIN}/volumeMounts", []),
        ("takes pods", "Namespace", "metadata/labels", {}),
    ],
    "local/serve network": [
        ("closes the namespace", "NetworkPolicy/deny", "", GONE),
        ("lets everyone in", "NetworkPolicy/serve", "spec/ingress", [{}]),
        ("no pod has a port", "NetworkPolicy/serve", "spec/ingress", [{"from": [{}], "ports": [{"port": "web"}]}]),
        ("no pod is labelled", "NetworkPolicy/serve", "spec/podSelector/matchLabels/a", "b"),
    ],
    "local/pack endings": [
        ("on a new cluster", "RayJob", "spec/backoffLimit", 2),
        ("its cluster stays", "RayJob", "spec/ttlSecondsAfterFinished", GONE),
    ],
    "local/train endings": [
        ("is tried again", "Job", "spec/podFailurePolicy", GONE),
        ("needs restartPolicy", "Job", "~/restartPolicy", "OnFailure"),
        ("moved by an autoscaler", "Job", "spec/template/metadata/annotations", GONE),
        ("guards no pod", "PodDisruptionBudget", "spec/selector/matchLabels/a", "b"),
        ("is not a number", "PodDisruptionBudget", "spec/minAvailable", "50%"),
    ],
    "local/load endings": [
        ("stays after its end", "Job", "spec/ttlSecondsAfterFinished", GONE),
    ],
    "share/train endings": [
        ("the JobSet repeats", "TrainingRuntime", f"{JOBSET}/failurePolicy/rules", GONE),
    ],
    "share/train-v1 endings": [
        ("is tried again", "PyTorchJob", f"{WORKER}/restartPolicy", "OnFailure"),
        ("ends the job", "PyTorchJob", f"{MAIN}/env", []),
        ("stays after its end", "PyTorchJob", "spec/runPolicy/ttlSecondsAfterFinished", GONE),
    ],
}
"""Rows by overlay and check: what the check says, the object, the path in it, and the value there."""

BROKEN = [
    Broken(overlay=overlay, check=check, said=said, thing=thing, path=path, value=value)
    for overlay, check, rows in ((*key.split(), rows) for key, rows in ROWS.items())
    for said, thing, path, value in rows
]
