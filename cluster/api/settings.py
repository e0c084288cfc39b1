"""What the front is told when it starts, and the bounds on what a client may send.

Each bound exists so that one request costs a bounded amount of memory and time before the engine
ever sees it. The defaults are above what ordinary clients send.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from octavo.cluster.api.tls import Certificate
from octavo.cluster.text.reasoning import ReasoningKind
from octavo.cluster.text.tool_calls import ToolFormat
from octavo.scheduler.errors import InvalidRequest

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s,]+")


class Address(NamedTuple):
    """Where to listen; with a certificate, for TLS alone."""

    host: str
    port: int
    certificate: Certificate | None = None

    @property
    def url(self) -> str:
        """How to reach a server that listens there, from its own machine."""
        scheme = "http" if self.certificate is None else "https"
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return (
            f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"
        )


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Sizes a client can choose. OpenAI allows 4 stop strings; vLLM sets no bound; 16 is ours,
    since agents send more than four and matching costs nothing per stop string."""

    body_bytes: int = 32 * 2**20
    body_seconds: float = 30.0  # between two pieces of it
    prompts: int = 1024
    sequences: int = 1024  # prompts times n (or best_of)
    messages: int = 4096
    stops: int = 16
    stop_chars: int = 1000
    stop_token_ids: int = 128
    logit_bias: int = 1024
    bad_words: int = 128
    salt_chars: int = 1024
    tools: int = 1024
    tool_depth: int = 100  # of objects and lists in one another


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """`model_path` is the directory whose tokenizer and template are used. The first of
    `served_model_names` is the one that answers carry. Without `api_keys` and an `api_key_file`
    everyone may call, and without `admin_api_key` what an admin may ask for is off. With a `seed`,
    the same requests in the same order are answered with the same random numbers. Web pages may
    call from `allowed_origins`, or from everywhere where "*" is among them. Parsers say how the
    model writes calls of tools and its reasoning; `generation_config` is where sampling defaults
    come from, the file of that name beside the model, or vLLM, whose defaults are OpenAI's.
    `adapters` are names too, each for the model with other weights beside its own; what they map to
    is shown as their parent, None for the model."""

    model_path: str
    served_model_names: tuple[str, ...]
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    seed: int | None = None
    admin_api_key: str | None = field(default=None, repr=False)
    limits: RequestLimits = RequestLimits()
    created: int = field(default_factory=lambda: int(time.time()))
    submit_grace: float = 1.0  # seconds to wait for a refusal before a stream's headers go out
    failover_timeout: float = 60.0  # seconds that a request waits for a replica
    enable_auto_tool_choice: bool = False
    tool_call_parser: ToolFormat | None = None
    reasoning_parser: ReasoningKind | None = None
    generation_config: Literal["auto", "vllm"] = "auto"
    scale_to_zero: bool = False  # that no replica is up is no fault, the next request starts one
    api_key_file: str | None = None
    allowed_origins: tuple[str, ...] = ()
    request_timeout: float | None = None  # seconds for a request and all of its answer
    enable_log_requests: bool = False
    adapters: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises `InvalidRequest` where settings are not possible, or not together."""
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise InvalidRequest(
                "enable_auto_tool_choice",
                "--enable-auto-tool-choice needs --tool-call-parser, which says how the model "
                f"writes calls: {' or '.join(get_args(ToolFormat))}",
            )
        if not 0 <= self.failover_timeout < math.inf:
            raise InvalidRequest(
                "failover_timeout",
                "failover_timeout must be a number of seconds, 0 or more, "
                f"got {self.failover_timeout}",
            )
        if self.request_timeout is not None and not 0 < self.request_timeout < math.inf:
            raise InvalidRequest(
                "request_timeout",
                f"request_timeout must be a number of seconds above 0, got {self.request_timeout}",
            )
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise InvalidRequest(
                    "allowed_origins",
                    "allowed_origins takes origins as a browser names them, such as "
                    f"https://chat.example.com, or *; got {origin!r}",
                )

    @property
    def names(self) -> tuple[str, ...]:
        """All that requests may use."""
        return (*self.served_model_names, *self.adapters)

    @property
    def asks_for_key(self) -> bool:
        """Whether a client must bring a key."""
        return bool(self.api_keys) or self.api_key_file is not None


CHAT_SETTINGS = (
    "enable_auto_tool_choice",
    "tool_call_parser",
    "reasoning_parser",
    "generation_config",
)
"""Those of `FrontSettings` that say how a model chats."""


def chat_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """`CHAT_SETTINGS` out of a model's arguments."""
    return {name: getattr(arguments, name) for name in CHAT_SETTINGS}
