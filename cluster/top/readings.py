"""What a server's `/metrics` and `/debug/look` say, read over HTTP. Knows nothing of terminals."""

from __future__ import annotations

import http.client
import ssl
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from octavo.cluster.picture import Heading
from octavo.scheduler.errors import EngineDead, InvalidRequest

ANSWER_SECONDS = 10.0
MOST_BYTES = 64 * 2**20
_TOLD_APART = ("model_name", "engine", "replica")

Totals = dict[str, float]
"""Samples of one replica by name and further labels: `octavo:kv_blocks|free|device`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One scrape: when it was, on a clock of seconds, and all replicas by (model, replica)."""

    at: float
    replicas: Mapping[tuple[str, str], Totals] = field(default_factory=dict)


class Source:
    """A server at `url`, such as http://127.0.0.1:8000."""

    def __init__(self, url: str, admin_api_key: str | None = None) -> None:
        """Raises `InvalidRequest`."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(
                "url", f"url must be like http://127.0.0.1:8000, with http or https, got {url!r}"
            )
        self.url = url.rstrip("/").removesuffix("/v1").removesuffix("/metrics")
        self._key = admin_api_key

    def read(self) -> Reading:
        """Raises `EngineDead` where no server of ours answers."""
        try:
            text = self._get("/metrics").decode()
            replicas = read_metrics(text)
        except urllib.error.HTTPError as error:
            raise EngineDead(
                f"{self.url}/metrics answers with HTTP {error.code}; is it Octavo?"
            ) from None
        except (ValueError, KeyError, http.client.HTTPException):
            raise EngineDead(f"what {self.url}/metrics answers is no metrics of Octavo's") from None
        except OSError as error:
            raise EngineDead(f"no server answers at {self.url}: {_reason(error)}") from None
        return Reading(time.monotonic(), replicas)

    def look(self, model: str, replica: str) -> Heading | str:
        """A replica's requests, or a sentence that says why there are none to see."""
        query = urllib.parse.urlencode({"model": model, "replica": replica})
        try:
            raw = self._get(f"/debug/look?{query}")
            (length,) = struct.unpack_from("<I", raw)
            return msgspec.json.decode(raw[4 : 4 + length], type=Heading)
        except urllib.error.HTTPError as error:
            if error.code in (401, 404):
                return "requests are shown to who has the server's --admin-api-key"
            return f"requests cannot be shown: HTTP {error.code}"
        except (OSError, ValueError, struct.error, http.client.HTTPException) as error:
            return f"requests cannot be shown: {_reason(error)}"

    def _get(self, path: str) -> bytes:
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
            raw: bytes = response.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        return raw


def read_metrics(text: str) -> dict[tuple[str, str], Totals]:
    """All replicas in a scrape. Raises `ValueError` or `KeyError` where it is not one of ours."""
    replicas: dict[tuple[str, str], Totals] = {}
    ours = False
    for family in text_string_to_metric_families(text):
        ours |= family.name == "vllm:num_requests_running"
        for sample in family.samples:
            if "model_name" not in sample.labels:
                continue  # a Python process's own
            labels = dict(sample.labels)
            model, engine, replica = (labels.pop(name, "") for name in _TOLD_APART)
            further = (value for _, value in sorted(labels.items()))
            name = "|".join((sample.name, *further))
            replicas.setdefault((model, replica or engine), {})[name] = sample.value
    if not ours:
        raise ValueError("no metrics of an engine")
    return replicas


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", error)
    if isinstance(inner, ssl.SSLError):
        return f"TLS: {getattr(inner, 'verify_message', '') or inner.reason or inner}"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror.lower()
    return str(inner).lower()
