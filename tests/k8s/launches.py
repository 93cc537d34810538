"""Ways in which torchrun finds its nodes, in each of the kinds of objects that train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from manifests import Object, Pod, of_kind

ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"


class Launch(NamedTuple):
    """Launch of torchrun: its options, and what objects make: ``endpoint`` against where the first pod ``listens``."""

    nodes: int
    replicas: int
    processes: int
    endpoint: str
    listens: str
    others: Sequence[str] = ()

    def faults(self) -> Iterator[str]:
        if self.nodes != self.replicas:
            yield f"torchrun waits for {self.nodes} nodes, and there are {self.replicas} pods"
        if self.endpoint != self.listens:
            yield f"rendezvous at {self.endpoint}, and the first pod listens at {self.listens}"
        yield from self.others


def read_launch(pod: Pod, container: Object, launch: Any, objects: list[Object]) -> Launch:
    """Reads what becomes of torchrun's options ``launch`` in a pod."""
    by_kind = {"Job": _plain_launch, "PyTorchJob": _operator_launch, "TrainingRuntime": _runtime_launch}
    return by_kind[pod.owner["kind"]](pod, container, launch, objects)


def ports(container: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container.get("ports", [])}


def _plain_launch(pod: Pod, container: Object, launch: Any, objects: list[Object]) -> Launch:
    spec, domain = pod.owner["spec"], pod.spec["subdomain"]
    faults = []
    if spec["completions"] != spec["parallelism"]:
        faults.append(f"{spec['completions']} pods of which {spec['parallelism']} run: the first wait for ever")
    headless = [one for one in of_kind(objects, "Service") if one["metadata"]["name"] == domain]
    if [one["spec"].get("clusterIP") for one in headless] != ["None"]:
        faults.append(f"subdomain {domain} has no headless Service")
    listens = f"{pod.owner['metadata']['name']}-0.{domain}:{ports(container).get('rendezvous')}"
    nodes, processes = int(launch.nnodes), int(launch.nproc_per_node)
    return Launch(nodes, spec["completions"], processes, launch.rdzv_endpoint, listens, faults)


def _operator_launch(pod: Pod, container: Object, launch: Any, objects: list[Object]) -> Launch:
    """The training operator v1 sets nodes and rendezvous by PET_ variables, and names its pods itself."""
    spec, host = pod.owner["spec"], f"{pod.owner['metadata']['name']}-worker-0"
    endpoint, listens = (
        f"{host}:{port}" for port in (spec["elasticPolicy"]["rdzvPort"], ports(container).get("pytorchjob-port"))
    )
    nodes, replicas = spec["elasticPolicy"]["maxReplicas"], spec["pytorchReplicaSpecs"]["Worker"]["replicas"]
    return Launch(nodes, replicas, int(launch.nproc_per_node), endpoint, listens)


def _runtime_launch(pod: Pod, container: Object, launch: Any, objects: list[Object]) -> Launch:
    """Kubeflow Trainer sets everything by PET_ variables, from the TrainJob, in the container that it finds by name."""
    [job] = [
        one
        for one in of_kind(objects, "TrainJob")
        if one["spec"]["runtimeRef"]["name"] == pod.owner["metadata"]["name"]
    ]
    [replicated] = pod.owner["spec"]["template"]["spec"]["replicatedJobs"]
    labels = replicated["template"]["metadata"]["labels"]
    faults = []
    if (replicated["name"], container["name"], labels.get(ANCESTOR)) != ("node", "node", "trainer"):
        faults.append("the trainer does not find the container that it gives the rendezvous to")
    if job["spec"]["runtimeRef"]["kind"] != "TrainingRuntime":
        faults.append("the TrainJob looks for a runtime of the whole cluster")
    asked, replicas = job["spec"]["trainer"], pod.owner["spec"]["mlPolicy"]["numNodes"]
    return Launch(asked["numNodes"], replicas, asked["numProcPerNode"], "", "", faults)
