"""NetworkPolicies, evaluated as a cluster's network does: what may reach what."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from manifests import Object, of_kind, pods, title
from references import PART, PARTS


@dataclass(frozen=True, kw_only=True)
class Peer:
    """An end of a connection: a pod with its labels, or an address outside when it has no namespace."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "203.0.113.7"
    ports: Mapping[str, int] = field(default_factory=dict)


def may_reach(policies: list[Object], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection is let out by the policies of its source and in by those of its target."""
    out = _allows(policies, source, target, port, protocol, direction="egress", ports=target.ports)
    return out and _allows(policies, target, source, port, protocol, direction="ingress", ports=target.ports)


def _allows(
    policies: list[Object],
    here: Peer,
    there: Peer,
    port: int,
    protocol: str,
    *,
    direction: str,
    ports: Mapping[str, int],
) -> bool:
    of_here = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == here.namespace
        and direction.capitalize() in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], here.labels)
    ]
    end = "to" if direction == "egress" else "from"
    rules = [rule for spec in of_here for rule in spec.get(direction, [])]
    return not of_here or any(
        _has_port(rule, port, protocol, ports)
        and (not rule.get(end) or any(_is(peer, there, here.namespace) for peer in rule[end]))
        for rule in rules
    )


def _has_port(rule: Object, port: int, protocol: str, named: Mapping[str, int]) -> bool:
    given = rule.get("ports")
    return not given or any(
        one["protocol"] == protocol
        and (named.get(one["port"]) if isinstance(one["port"], str) else one["port"]) == port
        for one in given
    )


def _is(peer: Object, other: Peer, namespace: str) -> bool:
    if "ipBlock" in peer:
        return ipaddress.ip_address(other.address) in ipaddress.ip_network(peer["ipBlock"]["cidr"])
    if not other.namespace:
        return False
    spaces = peer.get("namespaceSelector")
    in_space = (
        other.namespace == namespace
        if spaces is None
        else _selects(spaces, {"kubernetes.io/metadata.name": other.namespace})
    )
    return in_space and _selects(peer.get("podSelector", {}), other.labels)


def _selects(selector: Any, labels: Mapping[str, str]) -> bool:
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    for rule in selector.get("matchExpressions", []):
        assert rule["operator"] == "In", rule
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    return True


def network_faults(objects: list[Object]) -> Iterator[str]:
    """A namespace that is open, rules that let everyone in, and policies for what does not exist."""
    policies = of_kind(objects, "NetworkPolicy")
    closed = [
        one for one in policies if one["spec"]["podSelector"] == {} and not one["spec"].keys() & {"ingress", "egress"}
    ]
    if not any(set(one["spec"]["policyTypes"]) == {"Ingress", "Egress"} for one in closed):
        yield "no NetworkPolicy closes the namespace"
    named = {port["name"] for pod in pods(objects) for one in pod.containers for port in one.get("ports", [])}
    for policy in policies:
        for rule in policy["spec"].get("ingress", []):
            if not rule.get("from"):
                yield f"{title(policy)}: lets everyone in"
            opened = {port["port"] for port in rule.get("ports", [])}
            unknown = {port for port in opened if isinstance(port, str)} - named
            if named and unknown and policy["metadata"]["labels"][PART] != "monitoring":
                yield f"{title(policy)}: no pod has a port {sorted(unknown)}"
        selector = policy["spec"]["podSelector"]
        wanted = set(selector.get("matchLabels", {}).values())
        wanted -= {"true"}  # what a client of the service is labelled with
        wanted |= {value for rule in selector.get("matchExpressions", []) for value in rule["values"]}
        yield from (f"{title(policy)}: no pod is labelled {name}" for name in wanted - set(PARTS))
