"""Metrics of a pack job: Ray exports them, under the names that the dashboard and the alerts ask for."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from preshard.packer_service.job.planning.measure import measure_and_keep
from preshard.packer_service.runtime.executors import TaskCounts

MONITORING = Path(__file__).parents[2] / "k8s" / "components" / "monitoring"
PATIENCE = 240.0
"""Seconds after which what Ray exports is taken as it is: it collects every few seconds."""


def asked_for() -> set[str]:
    """Metrics of Ray in the queries of the dashboard and of the alerts."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["spec"]["groups"]
    queries += [rule["expr"] for group in groups for rule in group["rules"]]
    return set(re.findall(r"\bray_\w+", " ".join(queries)))


def work(item: int) -> TaskCounts:
    amounts = {"documents": item, "rejected": 2, "crops": 7, "bytes": 1000}
    return TaskCounts(amounts=amounts, rejects={"bad_row": 1, "media_missing": 1})


def scraped(port: int) -> dict[tuple[str, str, str], float]:
    """Values that Ray exports, by name and by the labels ``task`` and ``code``."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples]
    return {(one.name, one.labels.get("task", ""), one.labels.get("code", "")): one.value for one in samples}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_ray_exports_what_the_dashboard_asks_for() -> None:
    """Fails when a metric gets another name or is no longer counted, or a query names one that does not exist."""
    import ray

    from preshard.packer_service.runtime.ray import ray_cluster

    with ray_cluster(None, None) as executor:
        assert len(list(executor.run(work, [3, 0, 4]))) == 3
    expected = {
        ("ray_preshard_pack_tasks", ""): 3,
        ("ray_preshard_pack_tasks_done", ""): 3,
        ("ray_preshard_pack_documents_total", ""): 7,
        ("ray_preshard_pack_crops_total", ""): 21,
        ("ray_preshard_pack_bytes_total", ""): 3000,
        ("ray_preshard_pack_rejects_total", "bad_row"): 3,
        ("ray_preshard_pack_rejects_total", "media_missing"): 3,
    }
    here = ray.get_runtime_context().get_node_id()  # another test's node may be on the list, and lost
    [port] = [node["MetricsExportPort"] for node in ray.nodes() if node["NodeID"] == here]
    until = time.monotonic() + PATIENCE
    values: dict[tuple[str, str, str], float] = {}
    counted: dict[tuple[str, str], float] = {}
    names: set[str] = set()
    # a scrape may show the counts of the first tasks alone, and none of Ray's own figures yet
    while (counted != expected or not asked_for() <= names) and time.monotonic() < until:
        time.sleep(0.2)
        try:
            values = scraped(port)
        except OSError:  # the exporter starts some seconds after Ray
            continue
        names = {name for name, _, _ in values}
        counted = {(name, code): value for (name, task, code), value in values.items() if task == "work"}
    assert counted == expected
    assert {name for name, _ in counted} <= asked_for()
    assert asked_for() - names == set()


def test_the_label_of_the_alerts_is_the_task_that_measures() -> None:
    """Fails when the function that measures is renamed, and the alerts go on asking for the old name."""
    text = (MONITORING / "alerts.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r'task="(\w+)"', text)) == {measure_and_keep.__name__}
