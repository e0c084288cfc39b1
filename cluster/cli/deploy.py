"""`octavo deploy` and `octavo status`: what a running cluster should serve, and what it does."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from octavo.cluster.arguments import read_application
from octavo.cluster.cli.console import Console
from octavo.cluster.deployments import (
    IMPORT_PATH,
    UNHEALTHY,
    ApplicationStatus,
    read_details,
    table,
)
from octavo.scheduler.errors import EngineDead, InvalidRequest

if TYPE_CHECKING:
    from octavo.cluster.distributed.serve_rest import ServeRest

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 30.0  # with a cluster that does not answer while it is being waited for
HEALING_SECONDS = 30.0  # in which another replica comes for one that died meanwhile
ANSWER_SECONDS = 10.0  # from Serve's word that all is well to the first answer


def deploy(arguments: argparse.Namespace, console: Console) -> None:
    """Sends the file to the cluster and waits until all of it serves. Raises `InvalidRequest` or
    `EngineDead` with one sentence; what was sent is still sent then."""
    config = read_config(arguments.config)
    from octavo.cluster.distributed.serve_rest import ServeRest, check_config  # brings Ray in

    check_config(config)
    serve = ServeRest(arguments.address)
    wanted = {each["name"] for each in config["applications"]}
    before = serve.details()
    for name in sorted(set(before["applications"]) - wanted):
        console.say(f"removing {name}, which the file does not name")
    serve.deploy(config)
    console.say(f"sent {', '.join(sorted(wanted))} to {arguments.address}")
    if not arguments.wait:
        return
    ours = {each["name"] for each in config["applications"] if each["import_path"] == IMPORT_PATH}
    stale = {m.reason.text for each in read_details(before)[0] for m in each.models}
    for application in _wait(serve, ours, stale, console, arguments.timeout):
        for url in application.urls[:1]:
            if not _answers(f"{url}/health", ANSWER_SECONDS):
                console.say(f"{url}/health does not answer this machine")
            console.deployed(url, [model.model for model in application.models])


def status(arguments: argparse.Namespace) -> bool:
    """Prints how the cluster's models are. Whether all are healthy. Raises `InvalidRequest` or
    `EngineDead`."""
    from octavo.cluster.distributed.serve_rest import ServeRest

    applications, others = read_details(ServeRest(arguments.address).details())
    if arguments.json:
        shown = [dataclasses.asdict(each) | {"healthy": each.healthy} for each in applications]
        print(json.dumps({"applications": shown, "others": others}, indent=2))
    elif applications:
        print(table(applications))
        for each in applications:
            print("".join(f"{each.name}: {url}/v1\n" for url in each.urls[:1]), end="")
    else:
        print("Octavo serves no model on this cluster; `octavo deploy CONFIG` makes it")
    return bool(applications) and all(each.healthy for each in applications)


def read_config(path: str) -> dict[str, Any]:
    """A Serve config file whose applications are checked where they are Octavo's, and have names.
    Raises `InvalidRequest` with the file's name and one sentence."""
    try:
        config = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise InvalidRequest("config", f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest("config", f"{path} is not a text file") from None
    except yaml.YAMLError as error:
        raise InvalidRequest("config", f"{path} is not YAML: {_first_line(error)}") from None
    applications = config.get("applications") if isinstance(config, dict) else None
    if not isinstance(applications, list) or not all(
        isinstance(each, dict) for each in applications
    ):
        raise InvalidRequest(
            "config", f"{path} is not a Serve config file: it has no list of applications"
        )
    for application in applications:
        application.setdefault("name", "default")
    ours = [each for each in applications if each.get("import_path") == IMPORT_PATH]
    if not ours:
        raise InvalidRequest("config", f"{path} has no application with import_path: {IMPORT_PATH}")
    for application in ours:
        _check_args(path, application)
    return dict(config)


def _check_args(path: str, application: Mapping[str, Any]) -> None:
    args = application.get("args") or {}
    try:
        if not isinstance(args, dict):
            raise InvalidRequest("args", f"args must be a mapping, got {args!r}")
        read_application(args)
    except InvalidRequest as error:
        message = f"{path}: application {application['name']}: {error.message}"
        raise InvalidRequest("config", message) from None


def _first_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark is not None else problem


def _wait(
    serve: ServeRest, names: set[str], stale: set[str], console: Console, timeout: float
) -> list[ApplicationStatus]:
    """Until all of `names` are healthy, with a line for each change. `stale` reasons were there
    before, and Serve may show them for a while yet."""
    said: dict[str, str] = {}
    deadline = time.monotonic() + timeout
    heard = time.monotonic()
    well = dict.fromkeys(names, heard)  # when each was not unhealthy last
    while True:
        try:
            applications, _ = read_details(serve.details())
            heard = time.monotonic()
        except EngineDead:
            if time.monotonic() - heard > PATIENCE_SECONDS:
                raise
            applications = []
        ours = [each for each in applications if each.name in names]
        for application in ours:
            _say_changes(application, stale, said, console)
            unhealthy = application.status == UNHEALTHY
            if not unhealthy:
                well[application.name] = heard
            failure = application.failure(stale)
            healing = unhealthy and heard - well[application.name] < HEALING_SECONDS
            if failure is not None and (failure.mistake or not healing):
                raise _failed(application, failure.text, failure.mistake)
        if len(ours) == len(names) and all(application.healthy for application in ours):
            return ours
        if time.monotonic() > deadline:
            raise EngineDead(
                f"not everything is healthy after {timeout:g} s{_lacking(ours)}; the cluster goes "
                "on trying, and `octavo status` says how far it is"
            )
        time.sleep(POLL_SECONDS)


def _lacking(applications: list[ApplicationStatus]) -> str:
    """Which models have too few replicas, and why as far as Serve tells."""
    few = [m for each in applications for m in each.models if m.running < m.target]
    told = [f"{m.model} has {m.running} of {m.target} replica(s). {m.reason.text}" for m in few]
    return f" ({' '.join(told).strip()})" if told else ""


def _failed(application: ApplicationStatus, text: str, mistake: bool) -> Exception:
    message = f"application {application.name} {application.status}: {text}"
    return InvalidRequest("config", message) if mistake else EngineDead(message)


def _say_changes(
    application: ApplicationStatus, stale: set[str], said: dict[str, str], console: Console
) -> None:
    for model in application.models:
        words = f"{model.running} of {model.target} replica(s) run"
        if model.reason.text and model.reason.text not in stale:
            words += f"; {model.reason.text}"
        key = f"{application.name} {model.model}"
        if said.get(key) != words:
            said[key] = words
            console.say(f"{model.model}: {words}")


def _answers(url: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                if response.status == 200:
                    return True
        except urllib.error.HTTPError:
            pass  # it does not hear its replicas yet
        except OSError:
            return False
        time.sleep(POLL_SECONDS)
    return False
