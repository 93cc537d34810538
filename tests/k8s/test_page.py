"""docs/cluster.md names images, overlays, parts, secrets and options that are there."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import click
import pytest
from checks import KUBERNETES, dockerfiles
from commands import parse
from manifests import OVERLAYS, REPOSITORY, Object, of_kind, pods
from operators import PUBLISHED, our_definitions
from references import SECRETS
from scripts import load_script
from torch.distributed.run import get_args_parser

from preshard.trainer.core.command import cli as train_cli
from preshard.trainer.core.config import TrainConfig

Rendered = Callable[[str], list[Object]]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return load_script(Path(__file__).parents[1] / "cluster" / "page.py")


def test_images_are_built_as_the_dockerfiles_say(page: ModuleType) -> None:
    """Fails when an image has no command on the page, or another than at the head of its Dockerfile."""
    heads = [re.search(r"docker build .*", path.read_text(encoding="utf-8")) for path in dockerfiles()]
    assert sorted(page.commands("docker")) == sorted(head[0] for head in heads if head)
    assert len(heads) == 4


def test_overlays_and_secrets_are_there(page: ModuleType, rendered: Rendered) -> None:
    """Fails when the page applies an overlay that is not there, leaves one or a Secret out, or names other objects."""
    shown = page.commands("kubectl")
    applied = {line.removeprefix("kubectl apply -k k8s/overlays/") for line in shown if " apply " in line}
    assert applied == set(OVERLAYS)
    made = {
        line.split()[6]: set(re.findall(r"--from-literal=(\w+)=", line)) for line in shown if "secret generic" in line
    }
    assert made == SECRETS
    there = {
        f"{one['kind'].lower()}/{one['metadata']['name']}"
        for part in ("load", "pack", "serve", "train")
        for one in rendered(f"local/{part}")
    }
    # the submitter's Job has the RayJob's name
    named = {name for line in shown for name in re.findall(r"\b(?:job|service|rayjob|deployment)/[\w-]+", line)}
    assert {"rayjob/preshard-pack", "service/preshard-serve"} <= named
    assert named - {"job/preshard-pack"} <= there
    [forward] = [line for line in shown if "port-forward" in line]
    [service] = of_kind(rendered("local/serve"), "Service")
    assert service["spec"]["ports"][0]["port"] == int(forward.partition(":")[2])
    assert [line for line in page.commands("curl") if "/v1/datasets" in line]


def cpus(quantity: str) -> float:
    return float(quantity.removesuffix("m")) / 1000 if quantity.endswith("m") else float(quantity)


def gibibytes(quantity: str) -> float:
    return float(quantity.removesuffix("Mi")) / 1024 if quantity.endswith("Mi") else float(quantity.removesuffix("Gi"))


def asked(objects: list[Object]) -> tuple[float, float, int]:
    """CPUs, GiB and GPUs that all pods of the objects ask for."""
    total = (0.0, 0.0, 0)
    for pod in pods(objects):
        many = pod.owner["spec"].get("completions", 1)
        if "workerGroupSpecs" in pod.where:
            many = pod.owner["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"]
        elif pod.owner["kind"] in ("PyTorchJob", "TrainingRuntime"):
            many = 2
        for requests in (container["resources"]["requests"] for container in pod.containers):
            of_one = cpus(requests["cpu"]), gibibytes(requests["memory"]), int(requests.get("nvidia.com/gpu", 0))
            total = tuple(sum_ + many * part for sum_, part in zip(total, of_one, strict=True))  # type: ignore[assignment]
    return total


def test_the_table_of_costs_is_what_the_overlays_ask_for(page: ModuleType, rendered: Rendered) -> None:
    """Fails when an overlay asks for other CPUs, memory or GPUs than the page says, or is missing there."""
    text = page.PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+/.*?`) \| ([\d.]+) \| ([\d.]+) GiB \| (\d*) *\|$", text, re.MULTILINE)
    said = {name: row[1:] for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    running = {name for name in OVERLAYS if name.partition("/")[2] not in ("setup", "monitoring")}
    assert set(said) == running - {"share/load"}
    for name, (cpu, memory, gpus) in said.items():
        assert asked(rendered(name)) == (float(cpu), float(memory), int(gpus or 0)), name


def test_what_was_compared_is_what_is_defined(page: ModuleType) -> None:
    """Fails when a kind of an operator is used whose definition the page does not name."""
    text = page.PAGE.read_text(encoding="utf-8")
    compared = set(re.findall(r"^\* (\w+) \([\w ]+ [\d.]+\): `[0-9a-f]{64}`$", text, re.MULTILINE))
    assert compared == {*our_definitions(), *PUBLISHED}
    for package in ("kubeflow-trainer-api", "kubeflow-training"):
        assert f"{package} {version(package)}" in text
    assert f"schemas of Kubernetes {KUBERNETES} " in text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_commands_have_options_that_exist(page: ModuleType) -> None:
    """Fails when an option of Ray, torchrun, the trainer or the packer on the page does not exist."""
    import ray.scripts.scripts  # brings Ray Serve, and its warnings
    from ray.dashboard.modules.job.cli import submit

    for line in page.commands("ray"):
        words = line.split()[1:]
        if words[:2] == ["job", "submit"]:
            values = submit.make_context("submit", words[2:]).params
            job = [word for word in values["entrypoint"] if word not in ("python", "-m")]
            assert parse(job[1:])["command"] == "pack"
        else:
            taken = ray.scripts.scripts.cli.get_command(click.Context(ray.scripts.scripts.cli), words[0])
            assert taken.make_context(words[0], words[1:])
    [training] = page.commands("torchrun")
    launch = get_args_parser().parse_args(training.split()[1:])
    config = train_cli.main(launch.training_script_args, standalone_mode=False)
    assert isinstance(config, TrainConfig)
    assert config.dp_replicate(int(launch.nnodes) * int(launch.nproc_per_node)) == 2


def test_what_the_page_says_of_sizes_is_what_the_manifests_ask(page: ModuleType, rendered: Rendered) -> None:
    """Fails when the overlays ask for less memory a CPU than the page says a task needs."""
    text = page.PAGE.read_text(encoding="utf-8")
    assert "| a CPU of a worker | 1.5 GiB" in text
    for place in ("local", "cloud", "share"):
        [job] = of_kind(rendered(f"{place}/pack"), "RayJob")
        [group] = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        store = int(group["rayStartParams"]["object-store-memory"]) / 2**30
        assert int(limits["memory"].removesuffix("Gi")) - store >= 1.5 * int(limits["cpu"])
    assert (REPOSITORY / "docs" / "cluster.md") == page.PAGE
