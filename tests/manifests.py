"""The manifests of deploy/kubernetes, and what its network policies let reach what."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DIRECTORY = Path(__file__).parents[1] / "deploy" / "kubernetes"
BASE = DIRECTORY / "base"
Manifest = dict[str, Any]
Labels = Mapping[str, str]


def load(directory: Path) -> list[Manifest]:
    """All documents of a kustomization, in its order."""
    listed = yaml.safe_load((directory / "kustomization.yaml").read_text())["resources"]
    return [each for name in listed for each in yaml.safe_load_all((directory / name).read_text())]


def of_kind(manifests: Iterable[Manifest], *kinds: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] in kinds]


def containers(template: Manifest) -> list[Manifest]:
    """Of a Pod's template, those that start first included."""
    return [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]


def selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    """Whether a label selector takes an object. An empty one takes all."""
    wanted = selector.get("matchLabels", {}).items()
    return wanted <= labels.items() and all(_expression(each, labels) for each in selector.get("matchExpressions", ()))


def _expression(expression: Mapping[str, Any], labels: Labels) -> bool:
    value, operator = labels.get(expression["key"]), expression["operator"]
    if operator == "In":
        return value in expression["values"]
    if operator == "NotIn":
        return value not in expression["values"]
    if operator == "Exists":
        return value is not None
    assert operator == "DoesNotExist"
    return value is None


@dataclass(frozen=True, slots=True)
class Place:
    """A Pod as policies see it."""

    labels: Labels
    namespace: str = "shapewright"
    namespace_labels: Labels | None = None
    address: str = "10.1.2.3"


def reaches(policies: Sequence[Manifest], source: Place, target: Place, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies of the namespace let ``source`` open a connection to ``target``."""
    out = _allowed(policies, source, target, port, protocol, "Egress")
    return out and _allowed(policies, target, source, port, protocol, "Ingress")


def _allowed(
    policies: Sequence[Manifest], subject: Place, peer: Place, port: int, protocol: str, direction: str
) -> bool:
    own = [each["spec"] for each in policies if subject.namespace == "shapewright"]
    ruling = [spec for spec in own if direction in spec["policyTypes"] and selects(spec["podSelector"], subject.labels)]
    if not ruling:
        return True
    rules = [rule for spec in ruling for rule in spec.get(direction.lower(), ())]
    side = "from" if direction == "Ingress" else "to"
    return any(
        (side not in rule or any(_is_peer(each, peer) for each in rule[side]))
        and ("ports" not in rule or {"protocol": protocol, "port": port} in rule["ports"])
        for rule in rules
    )


def _is_peer(rule: Mapping[str, Any], peer: Place) -> bool:
    if "ipBlock" in rule:
        address = ipaddress.ip_address(peer.address)
        blocks = [rule["ipBlock"]["cidr"], *rule["ipBlock"].get("except", ())]
        inside, *excepted = (address in ipaddress.ip_network(block) for block in blocks)
        return inside and not any(excepted)
    if "namespaceSelector" in rule:
        of_namespace = {"kubernetes.io/metadata.name": peer.namespace, **(peer.namespace_labels or {})}
        if not selects(rule["namespaceSelector"], of_namespace):
            return False
    elif peer.namespace != "shapewright":
        return False
    return selects(rule.get("podSelector", {}), peer.labels)
