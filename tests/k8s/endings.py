"""Ends of jobs: what is wrong is not tried again, what passes is, and what has ended goes away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from manifests import Object, of_kind, pods, title

STAY = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
REFUSED = 2
"""The exit status of a command that does not fit."""
RETRIED = 128
"""The least exit status after which the training operator starts a pod again."""


def ending_faults(objects: list[Object]) -> Iterator[str]:
    """Jobs that repeat a wrong command, never go away, or are evicted like a web server."""
    for job in of_kind(objects, "Job"):
        yield from _job_faults(title(job), job["spec"], trains="train" in title(job))
    for runtime in of_kind(objects, "TrainingRuntime"):
        jobs = runtime["spec"]["template"]["spec"]
        [replicated] = jobs["replicatedJobs"]
        ttl = {"ttlSecondsAfterFinished": jobs.get("ttlSecondsAfterFinished")}
        yield from _job_faults(title(runtime), {**replicated["template"]["spec"], **ttl}, trains=True)
        rules = [(rule["action"], rule["onJobFailureReasons"]) for rule in jobs["failurePolicy"].get("rules", [])]
        if ("FailJobSet", ["PodFailurePolicy"]) not in rules:
            yield f"{title(runtime)}: the JobSet repeats what a pod's policy has failed"
    for job in of_kind(objects, "PyTorchJob"):
        if "ttlSecondsAfterFinished" not in job["spec"]["runPolicy"]:
            yield f"{title(job)}: stays after its end"
        yield from _exit_code_faults(job)
    for job in of_kind(objects, "RayJob"):
        if job["spec"].get("backoffLimit") != 0:
            yield f"{title(job)}: KubeRay repeats a wrong command on a new cluster"
        if not job["spec"].get("shutdownAfterJobFinishes") or "ttlSecondsAfterFinished" not in job["spec"]:
            yield f"{title(job)}: its cluster stays after its end"
    yield from _eviction_faults(objects)


def _job_faults(where: str, spec: Any, *, trains: bool) -> Iterator[str]:
    if not spec.get("ttlSecondsAfterFinished"):
        yield f"{where}: stays after its end"
    rules = spec.get("podFailurePolicy", {}).get("rules", [])
    names = {container["name"] for container in spec["template"]["spec"]["containers"]}
    stops = [rule["onExitCodes"] for rule in rules if rule["action"] == "FailJob"]
    if trains and not any(one["containerName"] in names and REFUSED in one["values"] for one in stops):
        yield f"{where}: a wrong command is tried again"
    if rules and spec["template"]["spec"]["restartPolicy"] != "Never":
        yield f"{where}: a policy of failures needs restartPolicy Never"


def _exit_code_faults(job: Object) -> Iterator[str]:
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    if worker.get("restartPolicy") != "ExitCode":
        yield f"{title(job)}: a wrong command is tried again"
    for container in worker["template"]["spec"]["containers"]:
        values = {one["name"]: one.get("value", "") for one in container["env"]}
        if int(values.get("RETRY_STATUS", "1")) < RETRIED:
            yield f"{title(job)}: a failure that may pass ends the job"


def _eviction_faults(objects: list[Object]) -> Iterator[str]:
    for pod in pods(objects):
        loses_work = pod.labels["app.kubernetes.io/component"] in ("pack", "train") and "worker" not in pod.where
        if loses_work and not STAY.items() <= pod.template["metadata"].get("annotations", {}).items():
            yield f"{pod.where}: may be moved by an autoscaler"
    for budget in of_kind(objects, "PodDisruptionBudget"):
        wanted = budget["spec"]["selector"]["matchLabels"]
        ours = {name: value for name, value in wanted.items() if not name.startswith("ray.io/")}  # KubeRay adds those
        if not any(ours.items() <= pod.labels.items() for pod in pods(objects)):
            yield f"{title(budget)}: guards no pod"
        # of pods whose owner has no scale, the cluster takes nothing but a number
        if not isinstance(budget["spec"].get("minAvailable"), int):
            yield f"{title(budget)}: is not a number of pods"
