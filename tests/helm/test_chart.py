"""The chart: linted and rendered by helm 3 and 4, and valid where the API server would look."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import promql_parser
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from octavo.cluster.api.metrics import render_metrics
from octavo.cluster.arguments import ModelArguments, names_of, read_application
from octavo.cluster.autoscaling import Autoscaling
from octavo.cluster.checkpoints import embedded
from octavo.cluster.stats import Measured
from tests.cluster.test_metrics import snapshot
from tests.helm.conftest import CHART, EXAMPLES, NAMESPACE, ROOT, Helm, Render
from tests.helm.manifests import faults

# Every switch turned the other way.
ALL_ON = """\
auth: {existingSecret: ray-token}
secrets:
  apiKeys: {name: keys}
  adminKey: {name: keys}
  huggingFace: {name: hub}
gcsFaultTolerance: {enabled: true, redisAddress: "redis:6379", redisPasswordSecret: {name: redis}}
modelCache: {create: true, storageClassName: fast}
autoscaler: {enabled: true}
serve: {requestTimeoutSeconds: 600}
allowed_origins: ["https://chat.example.com"]
request_timeout: 600
enable_log_requests: true
head: {probes: {liveness: {tcpSocket: {port: 6379}}}}
ingress: {enabled: true, className: nginx, host: example.com, tlsSecret: tls}
httpRoute: {enabled: true, parentRefs: [{name: gateway}], hostnames: [example.com]}
monitoring:
  podMonitor: {enabled: true, labels: {release: prometheus}}
  prometheusRule: {enabled: true}
  dashboard: {enabled: true}
image: {pullSecrets: [{name: registry}]}
extraEnv: [{name: A, value: b}]
extraEnvFrom: [{configMapRef: {name: more}}]
extraVolumes: [{name: more, emptyDir: {}}]
extraVolumeMounts: [{name: more, mountPath: /more}]
extraObjects:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: plain}}
  - |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: "{{ .Release.Name }}-templated"}
models:
  - model: /models/large
    kv_cache_memory_bytes: 16GiB
    max_model_len: 1048576
    seed: 1234567890123
  - {model: a/b, served_model_name: [short, a/b], enable_prefix_caching: false}
"""


@pytest.fixture
def all_on(tmp_path: Path) -> Path:
    path = tmp_path / "all.yaml"
    path.write_text(ALL_ON)
    return path


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [each for each in objects if each["kind"] == kind]
    return found


def serve_config(objects: list[dict[str, Any]]) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(of_kind(objects, "RayService")["spec"]["serveConfigV2"])
    return config


def pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pod templates of head and workers."""
    cluster = of_kind(objects, "RayService")["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"] for group in groups]


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda each: each.stem if each else "-")
def test_every_example_is_linted_rendered_and_valid(
    run_helm: Helm, render: Render, example: Path | None
) -> None:
    values = ["--values", example] if example else []
    linted = run_helm("lint", "--strict", CHART, *values)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    objects = render(*values)
    assert {each["kind"]: faults(each) for each in objects if faults(each)} == {}
    config = serve_config(objects)
    ServeDeploySchema.model_validate(config)
    read_application(config["applications"][0]["args"])


def test_all_that_can_be_turned_on_is_valid(render: Render, all_on: Path) -> None:
    objects = render("--values", all_on)
    assert [(each["kind"], faults(each)) for each in objects if faults(each)] == []
    kinds = sorted(each["kind"] for each in objects)
    assert kinds == [
        *("ConfigMap", "ConfigMap", "ConfigMap", "HTTPRoute", "Ingress", "NetworkPolicy"),
        *("PersistentVolumeClaim", "Pod", "PodDisruptionBudget", "PodMonitor", "PrometheusRule"),
        "RayService",
    ]
    assert "demo-templated" in [each["metadata"]["name"] for each in objects]
    head, worker = pods(objects)
    assert head["spec"]["containers"][0]["livenessProbe"] == {"tcpSocket": {"port": 6379}}
    assert "automountServiceAccountToken" not in head["spec"], "the autoscaler calls Kubernetes"
    assert worker["spec"]["automountServiceAccountToken"] is False


def test_a_mistake_would_be_noticed(render: Render, all_on: Path) -> None:
    objects = render("--values", all_on)
    service = of_kind(objects, "RayService")
    service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["groupNam"] = "typo"
    service["spec"]["rayClusterConfig"]["authOptions"]["mode"] = "off"
    budget = of_kind(objects, "PodDisruptionBudget")
    budget["spec"]["maxUnavailabel"] = 1
    assert len(faults(service)) == 2 and len(faults(budget)) == 1


def test_models_arrive_as_they_were_given(render: Render, all_on: Path) -> None:
    args = serve_config(render("--values", all_on))["applications"][0]["args"]
    application = read_application(args)
    large, small = application.models
    assert application.shared == {
        "allowed_origins": ("https://chat.example.com",),
        "request_timeout": 600,
        "enable_log_requests": True,
    }
    assert large.kv_cache_memory_bytes == 16 * 2**30
    assert (large.max_model_len, large.seed) == (1048576, 1234567890123)
    assert names_of(small) == ("short", "a/b") and small.enable_prefix_caching is False


def test_the_schema_knows_exactly_the_arguments_of_a_model() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    ours = schema["definitions"]["model"]["properties"]
    theirs = msgspec.json.schema(ModelArguments)["$defs"]["ModelArguments"]["properties"]
    assert set(ours) == set(theirs)
    for name, theirs_of in theirs.items():
        if "enum" in theirs_of:
            assert set(ours[name]["enum"]) == set(theirs_of["enum"]), name
    nested = msgspec.json.schema(Autoscaling)["$defs"]["Autoscaling"]
    assert set(schema["definitions"]["autoscaling"]["properties"]) == set(nested["properties"])
    assert schema["definitions"]["autoscaling"]["required"] == nested["required"]


def _closed(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_closed, schema))
    if not isinstance(schema, dict):
        return True
    mine = "properties" not in schema or schema.get("additionalProperties") is False
    named = schema.get("properties", {}) | schema.get("definitions", {})
    rest = [each for name, each in schema.items() if name not in ("properties", "definitions")]
    return mine and all(map(_closed, named.values())) and _closed(rest)


def test_the_schema_is_closed_and_knows_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert _closed(schema)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("repliCas=2", "repliCas"),
        ("models[0].tensor_parallel=2", "tensor_parallel"),
        ("models[0].num_replicas=two", "num_replicas"),
        ("workerGroups[0].name=Not_A_Name", "name"),
        ("head.rayStartParams.dashboard-host=::", "dashboard-host"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("secrets.apiKeys.value=secret", "value"),
    ],
)
def test_a_wrong_value_is_refused_and_named(run_helm: Helm, setting: str, word: str) -> None:
    done = run_helm("template", "demo", CHART, "--set", setting)
    assert done.returncode != 0 and word in done.stderr


def test_pods_are_restricted_and_drain(render: Render, all_on: Path) -> None:
    for pod in pods(render("--values", all_on)):
        spec, [container] = pod["spec"], pod["spec"]["containers"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"startupProbe", "livenessProbe", "readinessProbe", "resources"} <= set(container)
        stop = " ".join(container["lifecycle"]["preStop"]["exec"]["command"])
        waits = re.search(r"sleep (\d+)", stop)
        [drains] = [each for each in container["env"] if "DRAIN_TIMEOUT" in each["name"]]
        assert waits and int(waits[1]) > 0
        assert int(waits[1]) + int(drains["value"]) < spec["terminationGracePeriodSeconds"]
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        volumes = {each["name"]: each for each in spec["volumes"]}
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        assert "persistentVolumeClaim" in volumes[mounts["/cache"]]


def test_secrets_are_named_and_never_written(render: Render, all_on: Path) -> None:
    objects = render("--values", all_on)
    for pod in pods(objects):
        env = {each["name"]: each for each in pod["spec"]["containers"][0]["env"]}
        for name in ("OCTAVO_API_KEY", "OCTAVO_ADMIN_API_KEY", "HF_TOKEN"):
            assert set(env[name]) == {"name", "valueFrom"}
            assert set(env[name]["valueFrom"]) == {"secretKeyRef"}
    assert not [each for each in objects if each["kind"] == "Secret"]
    assert "key" not in json.dumps(serve_config(objects)["applications"][0]["args"])


def test_ray_asks_for_a_token_unless_told_not_to(render: Render) -> None:
    def cluster(*values: str) -> dict[str, Any]:
        spec: dict[str, Any] = of_kind(render(*values), "RayService")["spec"]["rayClusterConfig"]
        return spec

    assert cluster()["authOptions"] == {"mode": "token"}
    assert "authOptions" not in cluster("--set", "auth.enabled=false")


def test_the_dashboard_is_for_kuberay_alone(render: Render, all_on: Path) -> None:
    objects = render("--values", all_on)
    policy = of_kind(objects, "NetworkPolicy")["spec"]
    [mine, *others] = policy["ingress"]
    assert mine == {"from": [{"podSelector": policy["podSelector"]}]}
    for pod in pods(objects):
        assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    test = of_kind(objects, "Pod")["metadata"]["labels"]
    assert not policy["podSelector"]["matchLabels"].items() <= test.items()
    reach = [rule["from"] for rule in others if 8265 in [each["port"] for each in rule["ports"]]]
    assert [each["podSelector"]["matchLabels"] for peers in reach for each in peers] == [
        {"app.kubernetes.io/name": "kuberay-operator"}
    ]
    service = of_kind(objects, "RayService")["spec"]
    assert service["rayClusterConfig"]["headGroupSpec"]["serviceType"] == "ClusterIP"
    for kind in ("Ingress", "HTTPRoute"):
        routed = json.dumps(of_kind(objects, kind))
        assert "8265" not in routed and "/v1" in routed and "-serve-svc" in routed


def test_what_selects_pods_finds_them(render: Render, all_on: Path) -> None:
    objects = render("--values", all_on)
    head, *workers = (pod["metadata"]["labels"] for pod in pods(objects))
    budget = of_kind(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    assert all(budget.items() <= labels.items() for labels in workers)
    assert not budget.items() <= head.items()
    monitor = of_kind(objects, "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= head.items()
    ports = {
        each["name"] for pod in pods(objects) for each in pod["spec"]["containers"][0]["ports"]
    }
    assert {each["port"] for each in monitor["podMetricsEndpoints"]} <= ports


def test_every_worker_group_can_be_named_by_a_model(render: Render) -> None:
    objects = render("--values", CHART / "examples" / "two-models.yaml")
    groups = of_kind(objects, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    offered = {
        name
        for group in groups
        for name in json.loads(group["rayStartParams"]["resources"].strip("'"))
    }
    args = serve_config(objects)["applications"][0]["args"]
    assert offered == {name for model in args["models"] for name in model["resources"]}


def expressions(objects: list[dict[str, Any]]) -> list[str]:
    """PromQL of all alerts and of the dashboard."""
    rules = of_kind(objects, "PrometheusRule")["spec"]["groups"][0]["rules"]
    [text] = [
        text
        for each in objects
        if each["kind"] == "ConfigMap"
        for name, text in each.get("data", {}).items()
        if name.endswith("octavo.json")
    ]
    panels = json.loads(text)["panels"]
    return [rule["expr"] for rule in rules] + [
        target["expr"] for panel in panels for target in panel["targets"]
    ]


def test_alerts_and_panels_ask_for_metrics_that_there_are(render: Render, all_on: Path) -> None:
    served = render_metrics({"m": [snapshot("r", Measured())]})
    known = set(re.findall(r"^([\w:]+)[{ ]", served.decode(), re.M))
    asked = expressions(render("--values", all_on))
    assert len(asked) > 15
    for expression in asked:
        promql_parser.parse(expression.replace("$__rate_interval", "5m"))
        names = set(re.findall(r"\b(?:vllm|octavo):\w+", expression))
        assert names and names <= known, expression


def test_alerts_name_the_models_as_their_metrics_do(render: Render, all_on: Path) -> None:
    objects = render("--values", all_on)
    rules = of_kind(objects, "PrometheusRule")["spec"]["groups"][0]["rules"]
    down = [rule["labels"]["model_name"] for rule in rules if rule["alert"] == "OctavoModelDown"]
    models = read_application(serve_config(objects)["applications"][0]["args"]).models
    assert down == [names_of(model)[0] for model in models] == ["large", "short"]
    [embedded_rule] = [
        rule
        for rule in of_kind(
            render("--set", "monitoring.prometheusRule.enabled=true"), "PrometheusRule"
        )["spec"]["groups"][0]["rules"]
        if rule["alert"] == "OctavoModelDown"
    ]
    assert embedded_rule["labels"]["model_name"] == embedded.NAME


def test_the_alerts_are_those_of_the_file_with_the_releases_values(
    render: Render, tmp_path: Path
) -> None:
    path = tmp_path / "values.yaml"
    limits = {"maxWaiting": 7, "maxQueueAge": 2.5, "maxCacheUsage": 0.5}
    limits |= {"maxPreemptionsPerRequest": 3, "maxTimeToFirstToken": 1000000}
    path.write_text(json.dumps({"monitoring": {"prometheusRule": {"enabled": True, **limits}}}))
    rules = of_kind(render("--values", path), "PrometheusRule")["spec"]["groups"][0]["rules"]
    [group] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    given = list(limits.values())
    for alert, rule in zip(group["rules"], rules, strict=True):
        assert "{}" in alert["expr"] and "{}" not in rule["expr"]
        assert f'namespace="{NAMESPACE}"' in rule["expr"]
        if alert["alert"] == "OctavoModelDown":
            continue
        expr = rule["expr"].replace(f'{{namespace="{NAMESPACE}"}}', "{}")
        assert rule | {"expr": alert["expr"]} == alert
        if expr != alert["expr"]:
            promql_parser.parse(expr)
            given.remove(float(expr.rpartition("> ")[2]))
    assert not given, "a value that changes no alert"


def test_what_the_alerts_say_by_default_is_what_the_file_says(render: Render) -> None:
    rules = of_kind(render("--set", "monitoring.prometheusRule.enabled=true"), "PrometheusRule")[
        "spec"
    ]["groups"][0]["rules"]
    [group] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    for alert, rule in zip(group["rules"][1:], rules[1:], strict=True):
        assert rule["expr"].replace(f'{{namespace="{NAMESPACE}"}}', "{}") == alert["expr"]


def test_metrics_are_scraped_under_rays_names_too_where_that_is_asked_for(render: Render) -> None:
    def endpoints(*values: str) -> list[dict[str, Any]]:
        objects = render("--set", "monitoring.podMonitor.enabled=true", *values)
        assert not faults(of_kind(objects, "PodMonitor"))
        found: list[dict[str, Any]] = of_kind(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
        return found

    ray, ours = endpoints()
    assert (ray["port"], ours["port"], ours["path"]) == ("metrics", "serve", "/metrics")
    more = endpoints("--set", "monitoring.podMonitor.rayNames=true")[2]
    assert more == ours | {"params": {"names": ["ray"]}}


def test_the_image_is_of_the_same_versions_as_the_project() -> None:
    dockerfile = (ROOT / "helm" / "Dockerfile").read_text()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert f"--no-deps {embedded.PACKAGE}" in dockerfile
    assert f"rayproject/ray:{values['rayVersion']}-" in dockerfile
    assert f'version = "{chart["appVersion"]}"' in (ROOT / "pyproject.toml").read_text()
    copied = set(re.findall(r"^COPY --chown=ray:users (\w+) source/\1$", dockerfile, re.M))
    assert copied == {"cluster", "kernels", "octavo", "scheduler", "workers"}
