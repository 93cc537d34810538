"""Reach among pods by the policies as a cluster's network applies them, for each way of installing the operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from manifests import Object, of_kind
from network import Peer, may_reach

PART = "app.kubernetes.io/component"
NAME = "app.kubernetes.io/name"
HEAD = Peer(namespace="preshard", labels={PART: "pack"}, ports={"metrics": 8080})
WORKER = HEAD
SERVE = Peer(namespace="preshard", labels={PART: "serve"}, ports={"http": 8000})
TRAIN = Peer(namespace="preshard", labels={PART: "train"})
LOAD = Peer(namespace="preshard", labels={PART: "load"})
CLIENT = Peer(namespace="preshard", labels={"preshard/client": "true"})
STRANGER = Peer(namespace="other", labels={"app": "web"})
STORE = Peer(address="52.218.1.1")

KUBERAY = {
    "the Helm chart": Peer(
        namespace="kuberay",
        labels={NAME: "kuberay-operator", "app.kubernetes.io/instance": "ray", PART: "kuberay-operator"},
    ),
    "kustomize": Peer(namespace="default", labels={NAME: "kuberay", PART: "kuberay-operator"}),
}
"""Labels of the operator's pods, from the chart's template and the kustomization of KubeRay 1.5.1 to 1.7.0."""
PROMETHEUS = {
    "the Prometheus operator": Peer(
        namespace="monitoring",
        labels={NAME: "prometheus", "app.kubernetes.io/managed-by": "prometheus-operator"},
    ),
    "the Prometheus chart": Peer(namespace="prometheus", labels={NAME: "prometheus", PART: "server"}),
}
RESOLVERS = {
    "kube-system": (Peer(namespace="kube-system", labels={"k8s-app": "kube-dns"}), 53),
    "OpenShift": (Peer(namespace="openshift-dns", labels={"dns.operator.openshift.io/daemonset-dns": "default"}), 5353),
    "NodeLocal DNSCache": (Peer(address="169.254.20.10"), 53),
    "Cloud DNS on GKE": (Peer(address="169.254.169.254"), 53),
}
Rendered = Callable[[str], list[Object]]


@pytest.fixture(scope="module")
def policies(rendered: Rendered) -> list[Object]:
    """All policies of the cloud's overlays, as when every part is there."""
    parts = ("pack", "serve", "train", "monitoring")
    found = {
        one["metadata"]["name"]: one for part in parts for one in of_kind(rendered(f"cloud/{part}"), "NetworkPolicy")
    }
    assert len(found) == 8
    return list(found.values())


@pytest.mark.parametrize("way", KUBERAY)
def test_the_operator_reaches_the_head(policies: list[Object], way: str) -> None:
    """Fails when KubeRay, installed in one of its two ways, cannot ask the head, and the job never starts."""
    assert may_reach(policies, KUBERAY[way], HEAD, 8265)
    assert not may_reach(policies, KUBERAY[way], HEAD, 10001)
    assert not may_reach(policies, KUBERAY[way], TRAIN, 29400)


@pytest.mark.parametrize("way", PROMETHEUS)
def test_prometheus_reaches_what_it_scrapes(policies: list[Object], way: str) -> None:
    """Fails when Prometheus is kept out of the service or of Ray's exporters, or let in to more."""
    assert may_reach(policies, PROMETHEUS[way], SERVE, 8000)
    assert may_reach(policies, PROMETHEUS[way], HEAD, 8080)
    assert not may_reach(policies, PROMETHEUS[way], HEAD, 8265)
    assert not may_reach(policies, PROMETHEUS[way], TRAIN, 8080)


@pytest.mark.parametrize("way", RESOLVERS)
def test_every_pod_resolves_names(policies: list[Object], way: str) -> None:
    """Fails when names cannot be resolved on a cluster whose resolvers are not pods of kube-system."""
    resolver, port = RESOLVERS[way]
    for pod in (HEAD, SERVE, TRAIN, LOAD):
        assert may_reach(policies, pod, resolver, port, "UDP")
        assert may_reach(policies, pod, resolver, port, "TCP")
    assert not may_reach(policies, HEAD, STRANGER, 53, "UDP")


def test_parts_talk_to_themselves_and_to_nobody_else(policies: list[Object]) -> None:
    """Fails when Ray's nodes or ranks cannot talk, or one part reaches another, or a stranger reaches any."""
    assert may_reach(policies, WORKER, HEAD, 6379)
    assert may_reach(policies, TRAIN, TRAIN, 29400)
    assert may_reach(policies, CLIENT, SERVE, 8000)
    assert not may_reach(policies, CLIENT, STORE, 443)
    for source, target in ((TRAIN, HEAD), (HEAD, TRAIN), (SERVE, HEAD), (LOAD, SERVE), (STRANGER, SERVE)):
        assert not may_reach(policies, source, target, 8000)
        assert not may_reach(policies, source, target, 8265)


def test_the_store_and_the_identities_are_reached_where_they_are_used(policies: list[Object], rendered: Any) -> None:
    """Fails when a pod cannot reach the bucket, or reaches the Internet where everything is on a share."""
    for pod in (HEAD, SERVE, TRAIN):
        assert may_reach(policies, pod, STORE, 443)
        assert not may_reach(policies, pod, STORE, 80)
        assert may_reach(policies, pod, Peer(address="169.254.170.23"), 80), "EKS gives out identities there"
        assert may_reach(policies, pod, Peer(address="169.254.169.252"), 988), "GKE gives out identities there"
    on_a_share = [
        one for part in ("pack", "serve", "train") for one in of_kind(rendered(f"share/{part}"), "NetworkPolicy")
    ]
    assert not any(may_reach(on_a_share, pod, STORE, 443) for pod in (HEAD, SERVE, TRAIN))


def test_without_a_policy_everything_is_reached() -> None:
    """Fails when the evaluation says no to all, so that the tests above would prove nothing."""
    assert may_reach([], STRANGER, HEAD, 8265)
