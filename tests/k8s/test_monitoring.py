"""The dashboard and the alerts ask for metrics and labels that the service has. tests/runtime scrapes those of Ray."""

from __future__ import annotations

import json
import re

import yaml
from fastapi.testclient import TestClient
from manifests import K8S
from prometheus_client.parser import text_string_to_metric_families

from preshard.packer_service.http.app import create_app
from preshard.packer_service.http.settings import ServiceSettings

MONITORING = K8S / "components" / "monitoring"


def queries() -> list[str]:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["spec"]["groups"]
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return panels + [rule["expr"] for group in groups for rule in group["rules"]]


def test_queries_of_the_service_name_what_it_exports() -> None:
    """Fails when a metric or a label of the service gets another name than the dashboard and the alerts ask for."""
    with TestClient(create_app(ServiceSettings(root=str(K8S)))) as client:
        assert client.get("/healthz").status_code == 200
        text = client.get("/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    labels: dict[str, set[str]] = {}
    for sample in samples:
        labels.setdefault(sample.name, set()).update(sample.labels)
    asked = [found for query in queries() for found in re.findall(r"(?<!\w)(preshard_\w+)(?:\{(.*?)\})?", query)]
    assert {"preshard_http_requests_total", "preshard_datasets"} <= {name for name, _ in asked}
    for name, selector in asked:
        # Prometheus adds the namespace of what it scrapes
        assert set(re.findall(r"(\w+)=", selector)) - {"namespace"} <= labels[name]


def test_panels_do_not_lie_on_each_other() -> None:
    """Fails when a panel is added where another one is, or with its number."""
    panels = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    places = [panel["gridPos"] for panel in panels]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
