"""docs/cluster.md names images, overlays, parts, secrets and options that are there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest
from checks import dockerfiles
from commands import parse
from manifests import OVERLAYS, REPOSITORY, of_kind, render
from references import PARTS, SECRETS
from torch.distributed.run import get_args_parser

from trainer.config import TrainConfig
from trainer.train import cli as train_cli


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("page", Path(__file__).parents[1] / "cluster" / "page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_images_are_built_as_the_dockerfiles_say(page: ModuleType) -> None:
    """Fails when an image has no command on the page, or another than at the head of its Dockerfile."""
    heads = [re.search(r"docker build .*", path.read_text(encoding="utf-8")) for path in dockerfiles()]
    assert sorted(page.commands("docker")) == sorted(head[0] for head in heads if head)
    assert len(heads) == 4


def test_overlays_parts_and_secrets_are_there(page: ModuleType) -> None:
    """Fails when the page applies an overlay or part that is not there, or leaves a part or a secret out."""
    shown = page.commands("kubectl")
    applied = [
        re.fullmatch(r"kubectl apply -k k8s/overlays/(\S+) -l app.kubernetes.io/component=(\S+)", line)
        for line in shown
        if "apply" in line
    ]
    assert {match[1] for match in applied if match} <= set(OVERLAYS)
    assert {match[2] for match in applied if match} == set(PARTS)
    assert None not in applied
    made = {
        line.split()[6]: set(re.findall(r"--from-literal=(\w+)=", line)) for line in shown if "secret generic" in line
    }
    assert made == SECRETS
    objects = render("local")
    [forward] = [line for line in shown if "port-forward" in line]
    name, ports = forward.split()[-2].removeprefix("service/"), forward.split()[-1].partition(":")[2]
    services = {one["metadata"]["name"]: one["spec"]["ports"][0]["port"] for one in of_kind(objects, "Service")}
    assert services[name] == int(ports)
    assert [line for line in shown if "rayjob preshard-pack" in line]
    assert of_kind(objects, "RayJob")[0]["metadata"]["name"] == "preshard-pack"
    assert [line for line in page.commands("curl") if "/v1/datasets" in line]


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


def test_what_the_page_says_of_sizes_is_what_the_manifests_ask(page: ModuleType) -> None:
    """Fails when the overlays ask for less memory a CPU than the page says a task needs."""
    text = page.PAGE.read_text(encoding="utf-8")
    assert "| a CPU of a worker | 1.5 GiB" in text
    for overlay in OVERLAYS:
        [job] = of_kind(render(overlay), "RayJob")
        [group] = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        store = int(group["rayStartParams"]["object-store-memory"]) / 2**30
        assert int(limits["memory"].removesuffix("Gi")) - store >= 1.5 * int(limits["cpu"])
    assert (REPOSITORY / "docs" / "cluster.md") == page.PAGE
