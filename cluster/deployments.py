"""How the models of a cluster are, read from what Serve says of its applications. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.cluster.arguments import (
    INGRESS,
    deployment_name,
    least_replicas,
    names_of,
    read_application,
)
from octavo.scheduler.errors import InvalidRequest

IMPORT_PATH = "octavo.cluster.distributed.application:app"
SERVED_BY_HAND = "octavo"  # the application of `octavo serve`
RUNNING = "running"
UNHEALTHY = "unhealthy"  # it was healthy before, and may be again
FAILED = ("deploy failed", UNHEALTHY)
EVERY_ADDRESS = ("0.0.0.0", "::", "")

_OUR_ERROR = re.compile(r"octavo\.scheduler\.errors\.(\w+): (.+)")
_WELL = ("healthy", "upscaling", "downscaling")


@dataclass(frozen=True, slots=True)
class Reason:
    """One sentence, "" for none. `mistake`: only the user can mend it, trying again is no use."""

    text: str = ""
    mistake: bool = False


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One model's replicas, or the ingresses. `status` is Serve's word for the deployment, and
    `states` counts its replicas by Serve's word for each."""

    model: str
    running: int
    target: int
    status: str
    states: Mapping[str, int]
    reason: Reason


@dataclass(frozen=True, slots=True)
class ApplicationStatus:
    """`urls` are where clients may go, one a node. Ingresses are among `models` while they are not
    well."""

    name: str
    status: str
    reason: Reason
    models: tuple[ModelStatus, ...]
    urls: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        return self.status == RUNNING and all(model.status in _WELL for model in self.models)

    def failure(self, stale: Container[str] = ()) -> Reason | None:
        """Why it will not become healthy, or None if it still may. A mistake that is not `stale`
        is reason enough while Serve still tries."""
        for model in self.models:
            if model.reason.mistake and model.reason.text not in stale:
                return model.reason
        if self.status not in FAILED:
            return None
        reasons = [model.reason for model in self.models if model.status in FAILED]
        return next((each for each in reasons if each.text), self.reason)


def read_details(details: Mapping[str, Any]) -> tuple[list[ApplicationStatus], list[str]]:
    """Octavo's applications, and the names of others. `details` is
    `ray.serve.schema.ServeInstanceDetails` as JSON."""
    ours: list[ApplicationStatus] = []
    others: list[str] = []
    for name, application in details["applications"].items():
        asked = application.get("deployed_app_config") or {}
        if asked.get("import_path") == IMPORT_PATH or name == SERVED_BY_HAND:
            models = _models(application, asked.get("args"))
            reason = reason_in(application["message"])
            urls = _urls(details, application)
            ours.append(ApplicationStatus(name, _word(application["status"]), reason, models, urls))
        else:
            others.append(name)
    return ours, others


def reason_in(message: str) -> Reason:
    """The one sentence in Serve's paragraphs and tracebacks."""
    if found := _OUR_ERROR.findall(message):
        kind, sentence = found[-1]
        return Reason(sentence.strip(), kind in ("InvalidRequest", "NeverFits"))
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return Reason()
    traced = any(line.startswith("Traceback") for line in lines)
    if lines[0].endswith("failed with exception:"):
        return Reason(lines[-1], mistake=not traced)  # the builder refused the arguments
    return Reason(lines[-1] if traced else lines[0])


def table(applications: list[ApplicationStatus]) -> str:
    """A few words a model, in columns."""
    rows = [("MODEL", "APPLICATION", "REPLICAS", "STATUS")]
    for each in applications:
        rows += [
            (model.model, each.name, f"{model.running}/{model.target}", _told(model))
            for model in each.models
        ]
        if each.reason.text and not any(model.reason.text for model in each.models):
            rows.append(("", each.name, "", _told(each)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    )


def _told(each: ModelStatus | ApplicationStatus) -> str:
    return f"{each.status}: {each.reason.text}" if each.reason.text else each.status


def _word(status: str) -> str:
    return status.lower().replace("_", " ")


def _models(application: Mapping[str, Any], args: Any) -> tuple[ModelStatus, ...]:
    deployments = application["deployments"]
    names = {each: (each, 0) for each in deployments if each != INGRESS}
    if args:
        try:
            asked = read_application(args).models
        except InvalidRequest:  # the builder refused them, and says so
            asked = ()
        for model in asked:
            names[deployment_name(model)] = (names_of(model)[0], least_replicas(model))
    ingress = deployments.get(INGRESS)
    if ingress is not None and _word(ingress["status"]) not in _WELL:
        names[INGRESS] = ("(ingress)", 0)
    return tuple(
        _model(model, count, application, deployments.get(deployment))
        for deployment, (model, count) in names.items()
    )


def _model(
    model: str, count: int, application: Mapping[str, Any], deployment: Mapping[str, Any] | None
) -> ModelStatus:
    """Before the application is built it has no deployments."""
    if deployment is None:
        return ModelStatus(model, 0, count, _word(application["status"]), {}, Reason())
    states = Counter(replica["state"] for replica in deployment["replicas"])
    return ModelStatus(
        model,
        states["RUNNING"],
        deployment["target_num_replicas"],
        _word(deployment["status"]),
        dict(states),
        reason_in(deployment["message"]),
    )


def _urls(details: Mapping[str, Any], application: Mapping[str, Any]) -> tuple[str, ...]:
    prefix, http = application.get("route_prefix"), details.get("http_options")
    if not prefix or not http:
        return ()
    proxies = details["proxies"].values()
    nodes = sorted(proxy["node_ip"] for proxy in proxies if proxy["status"] == "HEALTHY")
    if http["host"] not in EVERY_ADDRESS:
        nodes = [http["host"]]
    hosts = [f"[{node}]" if ":" in node else node for node in nodes]
    return tuple(f"http://{host}:{http['port']}{prefix}".rstrip("/") for host in hosts)
