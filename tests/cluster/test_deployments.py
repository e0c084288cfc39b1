"""Serve's word on its applications, read back as models; the texts are Serve's own."""

from __future__ import annotations

from typing import Any

from octavo.cluster.deployments import IMPORT_PATH, read_details, reason_in, table

REPLICA_FAILED = """\
A replica failed to start with exception. Retrying 2 more time(s). Error:
Traceback (most recent call last):
  File "replica.py", line 1928, in initialize
    await self._user_callable_wrapper.initialize_callable()
  File "planning.py", line 40, in plan_model
    path, names = resolve_model(arguments.model, on_progress)
octavo.scheduler.errors.InvalidRequest: there is no directory /no/such; name one

The above exception was the direct cause of the following exception:

RuntimeError: Traceback (most recent call last):
"""
NO_ROOM = (
    "Deployment 'b' in application 'default' has 1 replicas that have taken more than 30s to be "
    "scheduled.\nThis may be due to waiting for the cluster to auto-scale."
)


def deployment(status: str, states: list[str], target: int, message: str = "") -> dict[str, Any]:
    return {
        "status": status,
        "message": message,
        "target_num_replicas": target,
        "replicas": [{"state": state} for state in states],
    }


def details(
    deployments: dict[str, Any], status: str = "RUNNING", message: str = "", **more: Any
) -> dict[str, Any]:
    args = {"models": [{"model": "o/a", "num_replicas": 2}, {"model": "/m/b"}]}
    return {
        "http_options": {"host": "0.0.0.0", "port": 8000},
        "proxies": {
            "n1": {"node_ip": "10.0.0.2", "status": "HEALTHY"},
            "n2": {"node_ip": "fd00::1", "status": "HEALTHY"},
            "n3": {"node_ip": "10.0.0.1", "status": "STARTING"},
        },
        "applications": {
            "default": {
                "status": status,
                "message": message,
                "route_prefix": "/llm",
                "deployed_app_config": {"import_path": IMPORT_PATH, "args": args},
                "deployments": deployments,
            },
            **more,
        },
    }


def test_models_have_their_own_names_and_replicas() -> None:
    [application], others = read_details(
        details(
            {
                "Ingress": deployment("HEALTHY", ["RUNNING"], 1),
                "o--a": deployment("HEALTHY", ["RUNNING", "RUNNING"], 2),
                "b": deployment("UPSCALING", ["RUNNING", "STARTING"], 2),
            },
            other={"status": "RUNNING", "message": "", "deployments": {}},
        )
    )
    a, b = application.models
    assert (a.model, a.running, a.target, a.status) == ("o/a", 2, 2, "healthy")
    assert (b.model, b.states) == ("b", {"RUNNING": 1, "STARTING": 1})
    assert application.healthy and application.failure() is None and others == ["other"]
    assert application.urls == ("http://10.0.0.2:8000/llm", "http://[fd00::1]:8000/llm")
    lines = table([application]).splitlines()
    assert lines[1].split() == ["o/a", "default", "2/2", "healthy"]
    assert lines[2].split() == ["b", "default", "1/2", "upscaling"]


def test_before_it_is_built_an_application_has_models_but_no_replicas() -> None:
    [application], _ = read_details(details({}, status="DEPLOYING"))
    assert [(each.running, each.target) for each in application.models] == [(0, 2), (0, 1)]
    assert not application.healthy and application.failure() is None


def test_old_replicas_do_not_make_a_new_application_healthy() -> None:
    running = {
        "o--a": deployment("HEALTHY", ["RUNNING"] * 2, 2),
        "b": deployment("HEALTHY", ["RUNNING"], 1),
    }
    [application], _ = read_details(details(running, status="DEPLOYING"))
    assert not application.healthy


def test_a_mistake_ends_the_wait_at_once_but_not_one_of_yesterday() -> None:
    failing = {
        "o--a": deployment("UPDATING", ["STARTING"], 2, REPLICA_FAILED),
        "b": deployment("HEALTHY", ["RUNNING"], 1),
    }
    [application], _ = read_details(details(failing, status="DEPLOYING"))
    reason = application.failure()
    assert reason is not None and reason.mistake
    assert reason.text == "there is no directory /no/such; name one"
    assert application.failure({reason.text}) is None
    assert "updating: there is no directory /no/such" in table([application])


def test_waiting_for_room_is_no_failure() -> None:
    waiting = {
        "o--a": deployment("HEALTHY", ["RUNNING"] * 2, 2),
        "b": deployment("UPDATING", ["STARTING"], 1, NO_ROOM),
    }
    [application], _ = read_details(details(waiting, status="DEPLOYING"))
    assert application.failure() is None
    assert application.models[1].reason.text.endswith("more than 30s to be scheduled.")


def test_what_the_builder_refused_is_told_though_old_replicas_serve() -> None:
    running = {"o--a": deployment("HEALTHY", ["RUNNING"], 1)}
    message = "Deploying app 'default' failed with exception:\nargs.models[0] has no argument 'x'"
    [application], _ = read_details(details(running, "DEPLOY_FAILED", message))
    reason = application.failure()
    assert reason is not None and reason.mistake
    assert reason.text == "args.models[0] has no argument 'x'"
    assert "deploy failed: args.models[0] has no argument 'x'" in table([application])


def test_an_ingress_is_shown_while_it_is_not_well() -> None:
    [application], _ = read_details(
        details(
            {
                "Ingress": deployment("UNHEALTHY", [], 1, "A replica's health check failed."),
                "o--a": deployment("HEALTHY", ["RUNNING"] * 2, 2),
                "b": deployment("HEALTHY", ["RUNNING"], 1),
            },
            status="UNHEALTHY",
        )
    )
    assert application.models[-1].model == "(ingress)" and not application.healthy
    reason = application.failure()
    assert reason is not None and reason.text == "A replica's health check failed."


def test_a_server_started_by_hand_is_shown_too() -> None:
    served = {
        "status": "RUNNING",
        "message": "",
        "route_prefix": "/",
        "deployed_app_config": None,
        "deployments": {
            "Ingress": deployment("HEALTHY", ["RUNNING"], 1),
            "Replica": deployment("HEALTHY", ["RUNNING"], 1),
        },
    }
    whole = details({}) | {"applications": {"octavo": served}}
    [application], _ = read_details(whole)
    assert [model.model for model in application.models] == ["Replica"] and application.healthy


def test_a_traceback_of_others_is_told_by_its_last_line() -> None:
    begun = "Deploying app 'a' failed with exception:\nTraceback (most recent call last):\n"
    text = begun + "  x\nKeyError: 'y'"
    assert reason_in(text).text == "KeyError: 'y'" and not reason_in(text).mistake
    assert reason_in("").text == ""


def test_proxies_that_listen_on_one_address_are_reached_there() -> None:
    whole = details({})
    whole["http_options"]["host"] = "127.0.0.1"
    [application], _ = read_details(whole)
    assert application.urls == ("http://127.0.0.1:8000/llm",)
