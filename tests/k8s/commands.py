"""Commands in the manifests, held against the options, files and values that the code takes."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
from fastapi.testclient import TestClient
from launches import ports, read_launch
from manifests import K8S, REPOSITORY, Object, Pod, arguments, environment, of_kind, pods, title
from pydantic import SecretStr
from torch.distributed.run import get_args_parser

from preshard.packer_service.cli import cli
from preshard.packer_service.config import load_config
from preshard.packer_service.http.app import create_app
from preshard.packer_service.http.serve import TOKEN
from preshard.packer_service.http.settings import ServiceSettings
from preshard.schemas.errors import PreshardError
from preshard.trainer.core.command import cli as train_cli
from preshard.trainer.core.config import TrainConfig

CONFIG = K8S / "components" / "pack" / "pack.yaml"


def command_faults(objects: list[Object]) -> Iterator[str]:
    """Commands, options and values that the code does not take, and files of configuration that it refuses."""
    for pod in pods(objects):
        for container in pod.containers:
            given = arguments(container, objects)
            image = container["image"].rpartition("/")[2].partition(":")[0]
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
    named = ports(container)
    if values["command"] != "serve" or values["host"] != "0.0.0.0":
        yield f"{pod.where}: {' '.join(given)} does not serve beyond its pod"
    [token] = [one for one in container["env"] if one["name"] == TOKEN] or [{}]
    if "secretKeyRef" not in token.get("valueFrom", {}):
        yield f"{pod.where}: {TOKEN} comes from no Secret"
    if values["port"] not in named.values():
        yield f"{pod.where}: serves on {values['port']}, and its ports are {named}"
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind, {}).get("httpGet", {"path": "no path", "port": ""})
        if named.get(probe["port"]) != values["port"] or not _answers(probe["path"]):
            yield f"{pod.where}: {kind} asks for {probe['path']} on {probe['port']}, where nothing answers"


@cache
def _answers(path: str) -> bool:
    """Whether the service, which asks for a token, answers a probe, which has none."""
    with TestClient(create_app(ServiceSettings(root=str(REPOSITORY / "k8s"), token=SecretStr("secret")))) as client:
        return client.get(path).status_code == 200


def _train_faults(pod: Pod, container: Object, given: list[str], objects: list[Object]) -> Iterator[str]:
    launch = get_args_parser().parse_args(given)
    if (launch.training_script, launch.module) != ("preshard.train", True):
        yield f"{pod.where}: runs {launch.training_script}"
    config = train_cli.main(launch.training_script_args, standalone_mode=False)
    assert isinstance(config, TrainConfig)
    found = read_launch(pod, container, launch, objects)
    yield from (f"{pod.where}: {fault}" for fault in found.faults())
    config.dp_replicate(found.nodes * found.processes)
    devices = container["resources"]["limits"].get("nvidia.com/gpu")
    if (config.device == "cuda") != (devices is not None) or (devices and int(devices) != found.processes):
        yield f"{pod.where}: {found.processes} processes on {config.device}, and {devices} GPUs"
    packed = load_config(CONFIG, [])
    if config.layout not in packed.layouts or config.ring not in packed.ring_degrees:
        yield f"{pod.where}: trains by {config.layout} at ring {config.ring}, for which the job does not pack"
    if "$" in f"{config.data}{config.model}{config.checkpoint}":
        yield f"{pod.where}: {config.data}, {config.model} or {config.checkpoint} names a variable that is not set"


def _pack_faults(job: Object, objects: list[Object]) -> Iterator[str]:
    """The entrypoint is a script of the ConfigMap, in which the shell fills in what the head's environment has."""
    [head] = [pod for pod in pods([job]) if "headGroupSpec" in pod.where]
    [container] = head.containers
    program, script = shlex.split(job["spec"]["entrypoint"])
    volumes = {one["name"]: one["configMap"]["name"] for one in head.spec["volumes"] if "configMap" in one}
    maps = {one["metadata"]["name"]: one["data"] for one in of_kind(objects, "ConfigMap")}
    files = {
        f"{mount['mountPath']}/{name}": text
        for mount in container["volumeMounts"]
        for name, text in maps.get(volumes.get(mount["name"]), {}).items()
    }
    if program != "sh" or script not in files:
        yield f"{title(job)}: runs {program} {script}, and the head has {sorted(files)}"
        return
    [line] = [line for line in files[script].splitlines() if line.strip().startswith("preshard ")]
    values = environment(container, objects)
    given = [re.sub(r"\$(\w+)", lambda match: values.get(match[1], match[0]), word) for word in shlex.split(line)]
    options = {} if "$" in " ".join(given) else parse(given[1:])
    if options.get("command") != "pack":
        yield f"{title(job)}: runs {' '.join(given)}"
        return
    config = str(options["config_file"])
    if config not in files:
        yield f"{title(job)}: {config} is not there, only {sorted(files)}"
        return
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(files[config])
        file.flush()
        load_config(Path(file.name), [])
    pinned = re.search(r"^ray==(.+)$", (REPOSITORY / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if pinned is None or job["spec"]["rayClusterSpec"]["rayVersion"] != pinned[1]:
        yield f"{title(job)}: rayVersion is not the image's {pinned and pinned[1]}"
    exported = job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["metrics-export-port"]
    if ports(container).get("metrics") != int(exported):
        yield f"{title(job)}: metrics are exported on {exported}, and scraped on {ports(container)}"
