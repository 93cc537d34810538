"""Commands in the manifests, held against the options, files and values that the code takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
from fastapi.testclient import TestClient
from manifests import REPOSITORY, Object, Pod, arguments, environment, of_kind, pods, title
from pydantic import SecretStr
from torch.distributed.run import get_args_parser

from packer_service.cli import cli
from packer_service.config import load_config
from packer_service.http.app import create_app
from packer_service.http.serve import TOKEN
from packer_service.http.settings import ServiceSettings
from schemas.config import PackConfig
from schemas.errors import PreshardError
from trainer.config import TrainConfig
from trainer.train import cli as train_cli


def command_faults(objects: list[Object]) -> Iterator[str]:
    """Commands, options and values that the code does not take, and files of configuration that it refuses."""
    for pod in pods(objects):
        for container in pod.containers:
            given = arguments(container, objects)
            image = container["image"].partition(":")[0]
            try:
                if image == "preshard-serve":
                    yield from _serve_faults(pod, container, given)
                elif image == "preshard-train":
                    yield from _train_faults(pod, container, given, objects)
            except (click.ClickException, PreshardError, SystemExit) as error:
                yield f"{pod.where}: {' '.join(given)}: {getattr(error, 'message', error)}"
    for job in of_kind(objects, "RayJob"):
        try:
            yield from _pack_faults(job, objects)
        except (click.ClickException, PreshardError, OSError) as error:
            yield f"{title(job)}: {job['spec']['entrypoint']}: {getattr(error, 'message', error)}"


def parse(given: list[str]) -> dict[str, Any]:
    """Values of a ``preshard`` command.

    Raises:
        click.ClickException: no such command, option or value.
    """
    name, command, rest = cli.resolve_command(click.Context(cli), given)
    assert command is not None
    return {"command": name, **command.make_context(name, rest).params}


def _serve_faults(pod: Pod, container: Object, given: list[str]) -> Iterator[str]:
    values = parse(given)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    if values["command"] != "serve" or values["host"] != "0.0.0.0":
        yield f"{pod.where}: {' '.join(given)} does not serve beyond its pod"
    [token] = [one for one in container["env"] if one["name"] == TOKEN] or [{}]
    if "secretKeyRef" not in token.get("valueFrom", {}):
        yield f"{pod.where}: {TOKEN} comes from no Secret"
    if values["port"] not in ports.values():
        yield f"{pod.where}: serves on {values['port']}, and its ports are {ports}"
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind, {}).get("httpGet", {"path": "no path", "port": ""})
        if ports.get(probe["port"]) != values["port"] or not _answers(probe["path"]):
            yield f"{pod.where}: {kind} asks for {probe['path']} on {probe['port']}, where nothing answers"


@cache
def _answers(path: str) -> bool:
    """Whether the service, which asks for a token, answers a probe, which has none."""
    with TestClient(create_app(ServiceSettings(root=str(REPOSITORY / "k8s"), token=SecretStr("secret")))) as client:
        return client.get(path).status_code == 200


def _train_faults(pod: Pod, container: Object, given: list[str], objects: list[Object]) -> Iterator[str]:
    launch = get_args_parser().parse_args(given)
    if (launch.training_script, launch.module) != ("trainer.train", True):
        yield f"{pod.where}: runs {launch.training_script}"
    config = train_cli.main(launch.training_script_args, standalone_mode=False)
    assert isinstance(config, TrainConfig)
    spec, ports = pod.owner["spec"], {port["name"]: port["containerPort"] for port in container["ports"]}
    if pod.owner["kind"] == "PyTorchJob":
        policy = spec["elasticPolicy"]
        nodes, replicas = policy["maxReplicas"], spec["pytorchReplicaSpecs"]["Worker"]["replicas"]
        host, port = f"{pod.owner['metadata']['name']}-worker-0", policy["rdzvPort"]
        endpoint, listens = f"{host}:{port}", ports.get("pytorchjob-port")
    else:
        nodes, replicas = int(launch.nnodes), spec["completions"]
        endpoint, port = launch.rdzv_endpoint, int(launch.rdzv_endpoint.rpartition(":")[2])
        host, listens = f"{pod.owner['metadata']['name']}-0.{pod.spec['subdomain']}", ports.get("rendezvous")
        if replicas != spec["parallelism"]:
            yield f"{pod.where}: {replicas} pods of which {spec['parallelism']} run: the first wait for ever"
        headless = [one for one in of_kind(objects, "Service") if one["metadata"]["name"] == pod.spec["subdomain"]]
        if [one["spec"].get("clusterIP") for one in headless] != ["None"]:
            yield f"{pod.where}: subdomain {pod.spec['subdomain']} has no headless Service"
    if nodes != replicas:
        yield f"{pod.where}: torchrun waits for {nodes} nodes, and there are {replicas} pods"
    if endpoint != f"{host}:{listens}" or port != listens:
        yield f"{pod.where}: rendezvous at {endpoint}, and {host} listens on {ports}"
    config.dp_replicate(nodes * int(launch.nproc_per_node))
    devices = container["resources"]["limits"].get("nvidia.com/gpu")
    if (config.device == "cuda") != (devices is not None) or (devices and devices != launch.nproc_per_node):
        yield f"{pod.where}: {launch.nproc_per_node} processes on {config.device}, and {devices} GPUs"
    packed = _pack_config(objects)
    if config.layout not in packed.layouts or config.ring not in packed.ring_degrees:
        yield f"{pod.where}: trains by {config.layout} at ring {config.ring}, for which the job does not pack"
    if "$" in f"{config.data}{config.checkpoint}":
        yield f"{pod.where}: {config.data} or {config.checkpoint} names a variable that is not set"


def _pack_config(objects: list[Object]) -> PackConfig:
    [text] = [thing["data"]["pack.yaml"] for thing in of_kind(objects, "ConfigMap") if "pack.yaml" in thing["data"]]
    path = Path(REPOSITORY / "k8s" / "base" / "pack-config.yaml")
    assert path.read_text(encoding="utf-8") == text
    return load_config(path, [])


def _expanded(command: str, values: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda match: values.get(match[1], match[0]), command)


def _pack_faults(job: Object, objects: list[Object]) -> Iterator[str]:
    entrypoint = job["spec"]["entrypoint"]
    seen = [
        _expanded(entrypoint, environment(container, objects)) for pod in pods([job]) for container in pod.containers
    ]
    # the submitter's shell fills the names in, or in other modes of submission the head's
    if "$" in "".join(seen) or len(set(seen)) > 1:
        yield f"{title(job)}: {entrypoint} names a variable that is not set in each of its pods"
    program, *rest = shlex.split(seen[0])
    options = parse(rest)
    if (program, options["command"]) != ("preshard", "pack"):
        yield f"{title(job)}: runs {program} {options['command']}"
        return
    config = Path(options["config_file"])
    mounts = [mount for pod in pods([job]) for one in pod.containers for mount in one["volumeMounts"]]
    if not any(mount["mountPath"] == str(config.parent) for mount in mounts):
        yield f"{title(job)}: nothing is mounted where {config} is to be"
    _pack_config(objects)
    pinned = re.search(r"^ray==(.+)$", (REPOSITORY / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if pinned is None or job["spec"]["rayClusterSpec"]["rayVersion"] != pinned[1]:
        yield f"{title(job)}: rayVersion is not the image's {pinned and pinned[1]}"
