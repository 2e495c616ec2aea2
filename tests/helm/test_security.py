"""Pods are restricted, have few tokens and rights, and reach each other only over the required network edges."""

import pytest
import yaml

from tests.helm.engine import CHART, Helm, Manifest, manifests
from tests.helm.objects import containers, named, of_kind, pods, selects

DNS = {53, 5353}
ALLOWED_VOLUMES = {
    "configMap",
    "emptyDir",
    "secret",
    "persistentVolumeClaim",
    "projected",
    "downwardAPI",
    "csi",
    "image",
}


def _breaches(template: Manifest) -> list[str]:
    """Return the violations of Pod Security's `restricted` standard in a pod.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    """
    spec = template["spec"]
    pod = spec.get("securityContext", {})
    found = [field for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    found += [f"volume {v['name']}" for v in spec.get("volumes", []) if not (v.keys() - {"name"}) <= ALLOWED_VOLUMES]
    for container in containers(template):
        own = container.get("securityContext", {})
        merged = {**pod, **own}
        rules = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "drop ALL": "ALL" in own.get("capabilities", {}).get("drop", []),
            "add": set(own.get("capabilities", {}).get("add", [])) <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": merged.get("runAsNonRoot") is True,
            "runAsUser": merged.get("runAsUser") != 0,
            "seccomp": merged.get("seccompProfile", {}).get("type") in {"RuntimeDefault", "Localhost"},
            "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
        }
        found += [f"{container['name']}: {rule}" for rule, kept in rules.items() if not kept]
    return found


def test_every_pod_is_restricted(objects: list[Manifest]) -> None:
    assert {
        component: _breaches(template) for component, template in pods(objects).items() if _breaches(template)
    } == {}


def test_the_checker_sees_what_is_forbidden(default: list[Manifest]) -> None:
    template = pods(default)["drafter"]
    bad = {**template, "spec": {**template["spec"], "hostPID": True, "volumes": [{"name": "host", "hostPath": {}}]}}
    bad["spec"]["containers"] = [{"name": "drafter", "securityContext": {"runAsUser": 0}}]
    assert _breaches(bad) == [
        *("hostPID", "volume host", "drafter: allowPrivilegeEscalation", "drafter: drop ALL", "drafter: runAsUser"),
    ]


def test_the_chart_s_own_containers_write_nowhere_but_to_volumes(objects: list[Manifest]) -> None:
    ours = [
        container
        for template in pods(objects).values()
        for container in containers(template)
        if container["name"] not in {"before", "beside"}  # from the case's own values
    ]
    assert ours
    assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in ours)
    assert all(container["resources"]["limits"]["memory"] for container in ours)


def test_no_image_is_latest(objects: list[Manifest]) -> None:
    images = {container["image"] for template in pods(objects).values() for container in containers(template)}
    assert not [image for image in images if ":" not in image.rpartition("/")[2] or image.endswith(":latest")]


def test_a_digest_wins_over_the_tag(full: list[Manifest]) -> None:
    image = pods(full)["drafter"]["spec"]["containers"][0]["image"]
    assert image == f"registry.example.com/mirror/specdec/drafter@sha256:{'0123456789abcdef' * 4}"


def test_gpu_tiers_hold_no_token(objects: list[Manifest]) -> None:
    tokens = {name: template["spec"]["automountServiceAccountToken"] for name, template in pods(objects).items()}
    assert {name for name, mounted in tokens.items() if mounted} <= {"gateway", "ratio-controller", "certificates"}
    assert not any(account["automountServiceAccountToken"] for account in of_kind(objects, "ServiceAccount"))


@pytest.mark.parametrize("case", ["mtls-redis-tls"], indirect=True)
def test_a_gateway_that_asks_dns_holds_no_token_either(objects: list[Manifest]) -> None:
    assert not pods(objects)["gateway"]["spec"]["automountServiceAccountToken"]
    assert not of_kind(objects, "Role", "RoleBinding")


def test_nobody_has_rights_in_the_whole_cluster(objects: list[Manifest]) -> None:
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")


def test_rights_are_exactly_these(full: list[Manifest]) -> None:
    rules = {
        role["metadata"]["name"].removeprefix("prod-specdec-"): {
            (resource, tuple(rule.get("resourceNames", [])), tuple(rule["verbs"]))
            for rule in role["rules"]
            for resource in rule["resources"]
        }
        for role in of_kind(full, "Role")
    }
    assert rules == {
        "gateway": {("endpointslices", (), ("get", "list", "watch"))},
        "ratio-controller": {
            ("deployments/scale", ("prod-specdec-drafter",), ("get", "patch")),
            ("leases", ("prod-specdec-ratio-controller",), ("get", "update", "delete")),
            ("leases", (), ("create",)),
        },
    }


def test_rights_are_given_to_who_runs_with_them(full: list[Manifest]) -> None:
    for binding in of_kind(full, "RoleBinding"):
        component = binding["metadata"]["labels"]["app.kubernetes.io/component"]
        account = pods(full)[component]["spec"]["serviceAccountName"]
        assert [subject["name"] for subject in binding["subjects"]] == [account]
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]


def _edges(objects: list[Manifest]) -> set[tuple[str, str, int]]:
    """Return (from, to, port) for each connection between the chart's pods that both ends' policies allow."""
    policies = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each for each in of_kind(objects, "NetworkPolicy")
    }
    templates = pods(objects)
    out = {
        (name, other, port["port"])
        for name, policy in policies.items()
        for rule in policy["spec"]["egress"]
        for port in rule["ports"]
        for other in _matched(rule.get("to"), templates)
    }
    into = {
        (other, name, port["port"])
        for name, policy in policies.items()
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
        for other in _matched(rule.get("from"), templates)
    }
    return out & into


def _matched(peers: list[Manifest] | None, templates: dict[str, Manifest]) -> set[str]:
    if peers is None:
        return set(templates)
    selectors = [peer["podSelector"].get("matchLabels", {}) for peer in peers if "podSelector" in peer]
    return {name for name, template in templates.items() for selector in selectors if selects(selector, template)}


def test_every_pod_has_a_policy_for_both_directions(full: list[Manifest]) -> None:
    policies = of_kind(full, "NetworkPolicy")
    for template in pods(full).values():
        own = [each for each in policies if selects(each["spec"]["podSelector"]["matchLabels"], template)]
        assert [each["spec"]["policyTypes"] for each in own] == [["Ingress", "Egress"]]


@pytest.mark.parametrize("case", ["ratio-controller"], indirect=True)
def test_the_edges_between_tiers_are_exactly_these(objects: list[Manifest]) -> None:
    assert {edge for edge in _edges(objects) if edge[2] not in DNS} == {
        ("gateway", "verifier", 50053),
        ("gateway", "valkey-kv", 6379),
        ("verifier", "drafter", 50052),
        ("test", "gateway", 8000),
        ("ratio-controller", "verifier", 9090),
        ("ratio-controller", "drafter", 9090),
    }


def test_callers_are_those_of_the_namespace_unless_others_are_named(
    default: list[Manifest], full: list[Manifest]
) -> None:
    def callers(objects: list[Manifest]) -> list[Manifest]:
        (rule,) = [
            rule
            for rule in named(objects, "NetworkPolicy", "gateway")["spec"]["ingress"]
            if {port["port"] for port in rule["ports"]} == {50051, 8000}
        ]
        peers: list[Manifest] = rule["from"]
        return peers

    assert callers(default) == [{"podSelector": {}}]
    assert callers(full) == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]


def test_only_prometheus_reaches_the_admin_port(full: list[Manifest]) -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    for tier in ("gateway", "verifier", "drafter"):
        rules = named(full, "NetworkPolicy", tier)["spec"]["ingress"]
        assert all(rule.get("from") for rule in rules), "anybody may call"
        assert [rule["from"] for rule in rules if {"port": 9090} in rule["ports"]] == [[prometheus]]
        assert not [rule for rule in rules if {"port": 8081} in rule["ports"]]


def test_a_drafter_calls_nobody_but_dns(default: list[Manifest]) -> None:
    egress = named(default, "NetworkPolicy", "drafter")["spec"]["egress"]
    assert [port["port"] for rule in egress for port in rule["ports"]] == [53, 53, 5353, 5353]


def _egress_ports(texts: dict[str, str]) -> set[int]:
    egress = named(manifests(texts), "NetworkPolicy", "gateway")["spec"]["egress"]
    known = {*DNS, 50053, 443, 6443}
    return {port["port"] for rule in egress for port in rule["ports"]} - known


@pytest.mark.parametrize(
    ("redis", "ports"),
    [
        ({"external": {"url": "redis://redis:6390/0"}}, {6379, 6390}),
        ({"external": {"url": "redis://redis/0"}}, {6379}),
        ({"external": {"url": "redis+sentinel://a:26379,b:26380/s"}}, {26379, 26380, 6379}),
        ({"external": {"existingSecret": "url"}}, {6379}),
        ({"external": {"addresses": ["a:6380"]}, "kv": {"external": {"addresses": ["b:6390"]}}}, {6379, 6380, 6390}),
        ({"external": {"url": "redis://[fd00::1]:6390/0"}}, {6379, 6390}),
        (
            {"external": {"addresses": ["[fd00::1]:6380", "[fd00::2]:6381"], "sentinelMaster": "s"}},
            {6379, 6380, 6381},
        ),
    ],
)
def test_a_gateway_may_reach_its_stores(helm: Helm, redis: dict[str, object], ports: set[int]) -> None:
    values = {"redis": {"kv": {"dev": {"enabled": False}}, **redis}}
    assert _egress_ports(helm.render(CHART, values)) == ports


@pytest.mark.parametrize(
    "redis", [{"url": "redis://redis:6390/0"}, {"existingSecret": "url"}, {"addresses": ["a:6380"]}]
)
def test_the_ports_of_redis_that_are_named_are_always_open(helm: Helm, redis: dict[str, object]) -> None:
    values = {"redis": {"external": redis}, "networkPolicy": {"redisPorts": [7000, 7001]}}
    assert {7000, 7001} <= _egress_ports(helm.render(CHART, values))


def test_the_ratio_controller_may_reach_prometheus_behind_its_service(helm: Helm) -> None:
    values = {
        "redis": {"external": {"url": "redis://redis:6379/0"}},
        "drafter": {"autoscaling": {"kind": "ratio"}},
        "metrics": {"prometheusAddress": "http://prometheus.monitoring.svc"},
    }
    egress = named(manifests(helm.render(CHART, values)), "NetworkPolicy", "ratio-controller")["spec"]["egress"]
    assert [80, 9090] in [[port["port"] for port in rule["ports"]] for rule in egress]


def test_every_tier_sends_traces_where_the_chart_says(helm: Helm) -> None:
    where = [{"namespaceSelector": {}}]
    values = {
        "redis": {"external": {"url": "redis://redis:6379/0"}},
        "otel": {"endpoint": "http://collector.monitoring:4319"},
        "networkPolicy": {"collector": where},
    }
    found = manifests(helm.render(CHART, values))
    for component in ("drafter", "verifier", "gateway"):
        config = yaml.safe_load(named(found, "ConfigMap", component)["data"]["config.yaml"])
        assert config["otel"] == {"endpoint": "http://collector.monitoring:4319"}
        egress = named(found, "NetworkPolicy", component)["spec"]["egress"]
        assert {"ports": [{"port": 4319}], "to": where} in egress


def test_more_edges_are_added_to_every_tier(helm: Helm) -> None:
    into = {"from": [{"podSelector": {}}], "ports": [{"port": 15090}]}
    out = {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 4317}]}
    values = {
        "redis": {"external": {"url": "redis://redis:6379/0"}},
        "drafter": {"autoscaling": {"kind": "ratio"}},
        "networkPolicy": {"extraIngress": [into], "extraEgress": [out], "dnsPorts": [1053]},
    }
    found = manifests(helm.render(CHART, values))
    for component in ("drafter", "verifier", "gateway", "ratio-controller"):
        spec = named(found, "NetworkPolicy", component)["spec"]
        assert into in spec["ingress"], component
        assert out in spec["egress"], component
        dns = [rule["ports"] for rule in spec["egress"] if "protocol" in rule["ports"][0]]
        assert dns == [[{"port": 1053, "protocol": "UDP"}, {"port": 1053, "protocol": "TCP"}]]


@pytest.mark.parametrize(("case", "spoken"), [("mtls-redis-tls", "tls"), ("plain", "grpc")], indirect=["case"])
def test_a_mesh_is_told_what_the_tiers_speak(objects: list[Manifest], spoken: str) -> None:
    for suffix in ("verifier", "verifier-headless"):
        ports = {port["name"]: port for port in named(objects, "Service", suffix)["spec"]["ports"]}
        assert ports["grpc"]["appProtocol"] == spoken
    (public, _) = named(objects, "Service", "gateway")["spec"]["ports"]
    assert public["appProtocol"] == "kubernetes.io/h2c"


def test_a_gateway_may_reach_the_chart_s_own_stores(helm: Helm) -> None:
    values = {"redis": {"dev": {"enabled": True}, "kv": {"dev": {"enabled": True}}}}
    edges = _edges(manifests(helm.render(CHART, values)))
    assert {("gateway", "valkey", 6379), ("gateway", "valkey-kv", 6379)} <= edges
    assert not [edge for edge in edges if edge[0].startswith("valkey") and edge[2] not in DNS]


def test_passwords_are_in_no_object(helm: Helm, objects: list[Manifest]) -> None:
    maps = of_kind(objects, "ConfigMap")
    assert not [
        each for each in maps if "redis_url" in str(each) or "redis://" in str(each) or "rediss://" in str(each)
    ]
    assert not of_kind(objects, "Secret")
