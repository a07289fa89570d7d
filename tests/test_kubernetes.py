"""deploy/kubernetes: schemas, references between manifests, command lines, confinement, who reaches whom."""

from __future__ import annotations

import re
from itertools import product

import kubernetes_validate
import pytest
import yaml

from service.health import router
from service.metrics import Metrics
from tests.command_lines import parse
from tests.manifests import BASE, DIRECTORY, Manifest, Place, containers, load, of_kind, reaches, selects
from tuner.measure.device.signer import TOKEN
from tuner.storage import JobState, Pulse

SCALING = DIRECTORY / "autoscaling"
PARTS = load(BASE)
AUTOSCALER = load(SCALING)[0]
POLICIES = of_kind(PARTS, "NetworkPolicy")
TEMPLATES: dict[str, Manifest] = {
    each["metadata"]["name"]: each["spec"]["template"]
    for each in of_kind(PARTS, "Deployment", "StatefulSet", "DaemonSet", "Job")
}
PODS = {name: Place(template["metadata"]["labels"]) for name, template in TEMPLATES.items()}
CONTAINERS = [(name, each) for name, template in TEMPLATES.items() for each in containers(template)]
RAY = ("ray-head", "ray-builder", "worker")
EACH_CONTAINER = pytest.mark.parametrize(
    ("part", "container"), CONTAINERS, ids=[f"{name}-{each['name']}" for name, each in CONTAINERS]
)


def texts(container: Manifest) -> list[str]:
    """Whatever a container is told in words."""
    values = [each["value"] for each in container.get("env", ()) if "value" in each]
    return [*container.get("command", ()), *container.get("args", ()), *values]


def told(name: str) -> dict[str, str]:
    """The options of a part's last container that are written with `=`."""
    return dict(each.split("=", 1) for each in containers(TEMPLATES[name])[-1]["args"] if "=" in each)


@pytest.mark.parametrize(
    "manifest", [*PARTS, AUTOSCALER], ids=lambda each: f"{each['kind']}-{each['metadata']['name']}"
)
def test_a_manifest_is_what_kubernetes_takes(manifest: Manifest) -> None:
    kubernetes_validate.validate(manifest, "1.37", strict=True)


def test_a_manifest_with_an_unknown_field_is_noticed() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "api"}, "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, "1.37", strict=True)


def test_every_file_is_part_of_its_kustomization() -> None:
    assert {path.name for path in BASE.iterdir()} == {"kustomization.yaml"} | set(
        yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    )
    assert set(TEMPLATES) == {"postgres", "migrate", "api", "tracker", "ray-head", "ray-builder", "worker", "device"}


@EACH_CONTAINER
def test_a_command_line_parses(part: str, container: Manifest) -> None:
    if part == "postgres":
        assert "args" not in container
        return
    assert container["image"] == "shapewright"
    line = [*container.get("command", ["shapewright"]), *container.get("args", ())]
    wanted = {"migrate": "shapewright db upgrade", "device": "shapewright device serve"}
    wanted |= {"tracker": "shapewright tracker", "api": "shapewright serve", "worker": "shapewright worker"}
    # Kubernetes has replaced the variables before the program is started.
    assert parse([re.sub(r"\$\(\w+\)", "10.1.2.3", word) for word in line]) == wanted.get(
        container["name"], "ray start"
    )


@EACH_CONTAINER
def test_variables_and_volumes_are_there(part: str, container: Manifest) -> None:
    spec = TEMPLATES[part]["spec"]
    variables = {each["name"] for each in container.get("env", ())}
    if spec["enableServiceLinks"]:
        variables |= {f"{each['metadata']['name'].upper()}_SERVICE_HOST" for each in of_kind(PARTS, "Service")}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(texts(container)))) <= variables
    volumes = {each["name"] for each in spec["volumes"]} | ({"data"} if part == "postgres" else set())
    assert {each["name"] for each in container["volumeMounts"]} <= volumes


@EACH_CONTAINER
def test_probes_ask_what_is_there(part: str, container: Manifest) -> None:
    ports = {each["name"] for each in container.get("ports", ())}
    for probe in (container.get(name, {}) for name in ("readinessProbe", "livenessProbe", "startupProbe")):
        for kind in ("httpGet", "tcpSocket"):
            assert probe.get(kind, {}).get("port") in {None, *ports}
        assert probe.get("httpGet", {}).get("path") in {None, *(route.path for route in router.routes)}  # type: ignore[attr-defined]
    assert part != "api" or container["readinessProbe"]["httpGet"]["path"] == "/readyz"


@EACH_CONTAINER
def test_a_container_is_confined_and_bounded(part: str, container: Manifest) -> None:
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    spec = TEMPLATES[part]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    # Policies do not hold for what is on the network of the node.
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    for volume in spec["volumes"]:
        assert "secret" in volume or "sizeLimit" in volume["emptyDir"]


def test_selectors_take_the_pods_that_they_are_meant_for() -> None:
    for each in of_kind(PARTS, "Deployment", "StatefulSet", "DaemonSet"):
        name = each["metadata"]["name"]
        assert [part for part, pod in PODS.items() if selects(each["spec"]["selector"], pod.labels)] == [name]
    (budget,) = of_kind(PARTS, "PodDisruptionBudget")
    assert [part for part, pod in PODS.items() if selects(budget["spec"]["selector"], pod.labels)] == ["api"]
    for policy in POLICIES:
        assert any(selects(policy["spec"]["podSelector"], pod.labels) for pod in PODS.values())


def test_services_lead_to_ports_that_their_pods_have() -> None:
    for service in of_kind(PARTS, "Service"):
        (part,) = [name for name, pod in PODS.items() if service["spec"]["selector"].items() <= pod.labels.items()]
        assert part == service["metadata"]["name"]
        names = {port["name"] for each in containers(TEMPLATES[part]) for port in each.get("ports", ())}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names


def test_addresses_name_services_and_their_ports() -> None:
    services = {
        (each["metadata"]["name"], str(port["port"]))
        for each in of_kind(PARTS, "Service")
        for port in each["spec"]["ports"]
    }
    found = set()
    for _, container in CONTAINERS:
        for text in texts(container):
            found |= set(re.findall(r"(?:^|=|@)([a-z][a-z-]*):(\d+)", text))
            found |= {(name.lower(), port) for name, port in re.findall(r"\$\((\w+)_SERVICE_HOST\):(\d+)", text)}
    assert found == {("postgres", "5432"), ("tracker", "9190"), ("ray-head", "6379")}
    assert found <= services


def test_the_documentation_creates_every_secret() -> None:
    text = (DIRECTORY.parents[1] / "docs" / "howto" / "kubernetes.md").read_text()
    created = {
        (name, key)
        for name, rest in re.findall(r"create secret generic (\S+)((?:.*\\\n)*.*)", text)
        for key in re.findall(r"--from-literal=(\w+)=", rest)
    }
    wanted = set()
    for part, container in CONTAINERS:
        mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        for volume in TEMPLATES[part]["spec"]["volumes"]:
            if "secret" in volume and volume["name"] in mounted:
                # The file that the container is told to read.
                (key,) = re.findall(f"{mounted[volume['name']]}/(\\w+)", " ".join(texts(container)))
                wanted.add((volume["secret"]["secretName"], key))
        references = [each["valueFrom"].get("secretKeyRef") for each in container.get("env", ()) if "valueFrom" in each]
        wanted |= {(each["name"], each["key"]) for each in references if each}
    secrets = {("shapewright-database", "password"), ("shapewright-ray", "token"), ("shapewright-device", "token")}
    assert wanted == created == secrets
    assert not of_kind(PARTS, "Secret")


@pytest.mark.parametrize("part", RAY)
def test_every_process_of_ray_wants_the_token(part: str) -> None:
    for container in containers(TEMPLATES[part]):
        values = {each["name"]: each.get("value") for each in container["env"]}
        assert values["RAY_AUTH_MODE"] == "token"
        assert values["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray/token"


def test_a_worker_finds_the_node_beside_it() -> None:
    spec = TEMPLATES["worker"]["spec"]
    node, worker = containers(TEMPLATES["worker"])
    # Ray's drivers look for a node among the processes that they see, and meet it at a socket below /tmp.
    assert spec["shareProcessNamespace"] is True
    assert node["restartPolicy"] == "Always"
    assert "startupProbe" in node
    assert node["volumeMounts"] == worker["volumeMounts"]
    assert "--num-cpus=0" in node["args"]


def test_a_builder_has_the_cpus_that_it_tells_ray() -> None:
    (builder,) = containers(TEMPLATES["ray-builder"])
    assert told("ray-builder")["--num-cpus"] == builder["resources"]["requests"]["cpu"]


def test_a_device_has_cores_of_its_own_and_is_named_by_its_node() -> None:
    (device,) = containers(TEMPLATES["device"])
    assert device["resources"]["requests"] == device["resources"]["limits"], "the Pod is not Guaranteed"
    assert device["resources"]["limits"]["cpu"].isdecimal()
    references = {each["name"]: each["valueFrom"] for each in device["env"]}
    fields = {name: each["fieldRef"]["fieldPath"] for name, each in references.items() if "fieldRef" in each}
    assert (told("device")["--id"], told("device")["--address"]) == ("$(NODE_NAME)", "$(POD_IP)")
    assert (fields["NODE_NAME"], fields["POD_IP"]) == ("spec.nodeName", "status.podIP")
    node = {"shapewright/device": "true"}
    assert TEMPLATES["device"]["spec"]["nodeSelector"] == node
    (term,) = TEMPLATES["ray-builder"]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert not selects(term, node), "builders share a node with a device"


def test_devices_join_by_a_token_that_nobody_else_is_given() -> None:
    reference = {"secretKeyRef": {"name": "shapewright-device", "key": "token"}}
    given = [
        (part, each["name"])
        for part, container in CONTAINERS
        for each in container.get("env", ())
        if each.get("valueFrom") == reference
    ]
    assert given == [("device", TOKEN)]
    # Candidates are of the same user: what it could read of a volume, they could.
    assert not any("secret" in volume for volume in TEMPLATES["device"]["spec"]["volumes"])
    assert told("worker")["--device-tokens"] == "required"


PORTS = (53, 443, 5432, 6379, 6380, 8321, 9091, 9190, 23456)
REACHED = {
    *(("postgres", 5432, part) for part in ("api", "worker", "migrate")),
    ("tracker", 9190, "device"),
    ("tracker", 9190, "worker"),
    ("device", 9091, "worker"),
    *((target, port, source) for target, port, source in product(RAY, PORTS, RAY)),
}

DNS = Place({"k8s-app": "kube-dns"}, "kube-system")
RESOLVING = {"api", "migrate", "worker", "ray-head", "ray-builder"}
CLIENT = Place({}, "ingress", {"shapewright/clients": "true"})
PUBLIC = Place({}, "outside", address="93.184.216.34")


def reached(policies: list[Manifest]) -> set[tuple[str, int, str]]:
    everything = product(PODS, PORTS, PODS)
    return {(to, port, by) for to, port, by in everything if reaches(policies, PODS[by], PODS[to], port)}


def test_parts_reach_what_they_need_and_nothing_else() -> None:
    assert reached(POLICIES) == REACHED


@pytest.mark.parametrize("name", [each["metadata"]["name"] for each in POLICIES])
def test_no_policy_is_without_effect(name: str) -> None:
    left = [each for each in POLICIES if each["metadata"]["name"] != name]
    lookups = {part for part, pod in PODS.items() if reaches(left, pod, DNS, 53, "UDP")}
    assert (reached(left), lookups) != (REACHED, RESOLVING) or not reaches(left, PODS["api"], PUBLIC, 443)


def test_a_device_asks_for_no_names_and_nobody_but_the_api_speaks_to_the_world() -> None:
    assert {part for part, pod in PODS.items() if reaches(POLICIES, pod, DNS, 53, "UDP")} == RESOLVING
    assert {(part, port) for part in PODS for port in PORTS if reaches(POLICIES, PODS[part], PUBLIC, port)} == {
        ("api", 443)
    }


def test_clients_reach_the_api_alone() -> None:
    stranger = Place({"app.kubernetes.io/component": "worker", "shapewright/ray": "member"}, "elsewhere")
    assert [(to, port) for to in PODS for port in PORTS if reaches(POLICIES, CLIENT, PODS[to], port)] == [("api", 8321)]
    assert not any(reaches(POLICIES, stranger, PODS[to], port) for to in PODS for port in PORTS)


def test_builders_follow_a_metric_that_the_service_tells() -> None:
    spec = AUTOSCALER["spec"]
    target = spec["scaleTargetRef"]
    assert target["name"] in {each["metadata"]["name"] for each in of_kind(PARTS, target["kind"])}
    (metric,) = (each["external"]["metric"] for each in spec["metrics"])
    (states,) = (each["values"] for each in metric["selector"]["matchExpressions"] if each["key"] == "state")
    shown = Metrics().text(Pulse(dict.fromkeys(JobState, 1), 0.0, 0, 0, 0, {}, (), {}), 0)
    for state in states:
        assert f'{metric["name"]}{{state="{state}"}} 1.0' in shown
    (rule,) = yaml.safe_load((SCALING / "prometheus-adapter.yaml").read_text())["rules"]["external"]
    assert rule["seriesQuery"].startswith(metric["name"] + "{")
    assert rule["metricsQuery"].startswith("max("), "each replica of the API tells the same jobs"


def test_builders_go_one_at_a_time() -> None:
    spec = AUTOSCALER["spec"]
    assert spec["minReplicas"] >= 1, "without a builder a job would wait for ever"
    down = spec["behavior"]["scaleDown"]
    assert [each["value"] for each in down["policies"]] == [1]
    # Longer than any build, so that no candidate loses two builders.
    assert min(each["periodSeconds"] for each in down["policies"]) > 60
    (patch,) = yaml.safe_load((SCALING / "kustomization.yaml").read_text())["patches"]
    assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]
