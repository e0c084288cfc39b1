"""Serve's REST API on a cluster's dashboard, as `serve deploy` speaks it: no need to join the
cluster, nor to be on one of its machines."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient
from ray.exceptions import AuthenticationError
from ray.serve.schema import ServeDeploySchema

from octavo.scheduler.errors import EngineDead, InvalidRequest

CONNECT_SECONDS = 5.0


def check_config(config: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` for what Serve would not take."""
    try:
        ServeDeploySchema.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InvalidRequest("config", f"{place}: {first['msg']}") from None


class ServeRest:
    """`address` is the dashboard's, such as `http://127.0.0.1:8265`. All methods block, and raise
    `InvalidRequest` where the address or the token is wrong, `EngineDead` where the cluster fails
    to answer as it should."""

    def __init__(self, address: str) -> None:
        self._address = address
        _check_address(address)
        with self._told():
            self._client = ServeSubmissionClient(address)

    def deploy(self, config: Mapping[str, Any]) -> None:
        """Serve's goal becomes exactly this; applications that it does not name are removed."""
        with self._told():
            self._client.deploy_applications(dict(config))

    def details(self) -> dict[str, Any]:
        """All that Serve says of itself: `ray.serve.schema.ServeInstanceDetails` as JSON."""
        with self._told():
            return dict(self._client.get_serve_details())

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Ray's errors as ours."""
        try:
            yield
        except AuthenticationError:
            raise InvalidRequest(
                "address",
                f"the Ray cluster at --address {self._address} does not know this token; set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's",
            ) from None
        except ValueError as error:
            raise InvalidRequest("address", f"--address {self._address}: {_line(error)}") from None
        except (RuntimeError, OSError) as error:  # requests' errors are OSErrors
            raise EngineDead(
                f"the Ray cluster at --address {self._address} failed to answer: {_line(error)}"
            ) from None


def _check_address(address: str) -> None:
    """Requests have no time limit of their own."""
    parts = urlsplit(address)
    try:
        default = {"http": 80, "https": 443}[parts.scheme]
        host, port = parts.hostname or "", parts.port or default
        if not host:
            raise ValueError
    except (ValueError, KeyError):
        raise InvalidRequest(
            "address",
            f"--address {address} is not a dashboard's address; give one such as "
            "http://127.0.0.1:8265",
        ) from None
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise InvalidRequest(
            "address",
            f"there is no Ray cluster at --address {address}: {_line(error)}; start one with "
            "`ray start --head`, or name the dashboard of another",
        ) from None


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
