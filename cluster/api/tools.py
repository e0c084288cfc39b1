"""The tools of a chat request: which may be called, which must be, and how calls are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.cluster.api.protocol import (
    ChatRequest,
    FunctionDefinition,
    NamedTool,
    PastToolCall,
    Tool,
    ToolChoice,
)
from octavo.cluster.api.settings import FrontSettings, RequestLimits
from octavo.cluster.text.forced_calls import CallList, NamedCall, call_schema, list_schema
from octavo.cluster.text.frames import call_frame
from octavo.cluster.text.pieces import Reader
from octavo.cluster.text.pythonic_calls import PythonicCalls
from octavo.cluster.text.tool_calls import CallReader, HermesCalls, Llama3Calls, ToolFormat
from octavo.scheduler.errors import InvalidRequest

_FORMATS: dict[ToolFormat, type[CallReader]] = {
    "hermes": HermesCalls,
    "llama3_json": Llama3Calls,
    "pythonic": PythonicCalls,
}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says of tools. `shown` are those that the model is told of, `schemas` the
    schemas of the arguments of those it may call, by name. With `forced`, the answer is a call of
    that one; `required`: of any of them; `single`: no more than one. `strict` are the tools whose
    calls are to be held to their schemas where the model decides too."""

    shown: tuple[dict[str, Any], ...] = ()
    schemas: Mapping[str, dict[str, Any] | None] | None = None
    required: bool = False
    forced: str | None = None
    single: bool = False
    format: ToolFormat | None = None
    strict: frozenset[str] = frozenset()

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """What the whole answer must be, None where the model may answer as it likes."""
        if self.schemas is None:
            return None
        if self.forced is not None:
            return self.schemas[self.forced] or {"type": "object"}
        return list_schema(self.schemas, single=self.single) if self.required else None

    @property
    def strict_calls(self) -> tuple[dict[str, Any], str] | None:
        """Where the model decides and some tools are strict: the schema of a call, and the rule of
        what may stand around calls. None too where calls are not written in JSON."""
        if self.schemas is None or self.required or self.forced or not self.strict:
            return None
        framed = self.format and call_frame(self.format, single=self.single)
        if not framed:
            return None
        held = {name: own if name in self.strict else None for name, own in self.schemas.items()}
        return call_schema(held, framed[1]), framed[0]

    def reader(self) -> Reader | None:
        """For one answer; None where nothing in it is a call."""
        if self.schemas is None:
            return None
        if self.forced is not None:
            return NamedCall(self.forced)
        if self.required:
            return CallList(self.schemas, single=self.single)
        assert self.format is not None
        return _FORMATS[self.format](self.schemas, single=self.single)


def tool_use(body: ChatRequest, settings: FrontSettings) -> ToolUse:
    """Raises `InvalidRequest` for tools and choices that cannot be."""
    functions = _functions(body.tools, settings.limits)
    choice = body.tool_choice
    if not functions:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice", "tool_choice needs tools to choose from")
        return ToolUse()
    if choice == "none":
        return ToolUse()  # what the model is not told of it does not call
    schemas = {name: function.parameters for name, function in functions.items()}
    required = choice == "required"
    forced = None
    if isinstance(choice, ToolChoice):
        if choice.allowed_tools is not None:
            allowed = choice.allowed_tools.tools
            named = [_named(each, schemas) for each in allowed]
            schemas = {name: schemas[name] for name in named}
            required = choice.allowed_tools.mode == "required"
            if not schemas:
                raise InvalidRequest("tool_choice", "tool_choice allows none of the tools")
        else:
            forced = _named(choice, schemas)
    if forced is None and not required and not settings.enable_auto_tool_choice:
        raise InvalidRequest(
            "tools" if choice is None else "tool_choice",
            "whether to call tools cannot be left to the model here (tool_choice auto), as the "
            "server does not know how it writes calls; start the server with "
            "--enable-auto-tool-choice and --tool-call-parser",
        )
    return ToolUse(
        tuple(_shown(function) for function in functions.values()),
        schemas,
        required,
        forced,
        body.parallel_tool_calls is False,
        settings.tool_call_parser,
        frozenset(name for name in schemas if functions[name].strict),
    )


def shown_tools(tools: list[Tool] | None, limits: RequestLimits) -> tuple[dict[str, Any], ...]:
    """The tools as a chat template gets them. Raises `InvalidRequest`."""
    return tuple(_shown(function) for function in _functions(tools, limits).values())


def past_calls(calls: list[PastToolCall], where: str) -> list[dict[str, Any]]:
    """Calls of an earlier turn as templates want them, with arguments as objects. What a model got
    wrong, or could not finish, stays a text. Raises `InvalidRequest`."""
    plain = []
    for number, call in enumerate(calls):
        if call.function is None:
            place = f"{where}[{number}]"
            raise InvalidRequest(
                place, f"{place} must be of type function, with its function; got {call.type!r}"
            )
        function = {
            "name": call.function.name,
            "arguments": _arguments(call.function.arguments),
        }
        plain.append({"id": call.id or "", "type": "function", "function": function})
    return plain


def _functions(tools: list[Tool] | None, limits: RequestLimits) -> dict[str, FunctionDefinition]:
    """By name, in the client's order."""
    if len(tools or ()) > limits.tools:
        raise InvalidRequest(
            "tools", f"tools may have at most {limits.tools} items, got {len(tools or ())}"
        )
    functions: dict[str, FunctionDefinition] = {}
    for number, tool in enumerate(tools or ()):
        where = f"tools[{number}]"
        if tool.function is None:
            raise InvalidRequest(
                where, f"{where} must be of type function, with its function; got {tool.type!r}"
            )
        name = tool.function.name
        if not name or name in functions:
            what = f"is called {name!r} as another is" if name else "has no name"
            raise InvalidRequest(f"{where}.function.name", f"{where} {what}")
        if _deeper_than(tool.function.parameters, limits.tool_depth):
            raise InvalidRequest(
                f"{where}.function.parameters",
                f"{where}.function.parameters is nested deeper than {limits.tool_depth} levels",
            )
        functions[name] = tool.function
    return functions


def _shown(function: FunctionDefinition) -> dict[str, Any]:
    """All that templates ask for, in the order that models were trained on."""
    told = {
        "name": function.name,
        "description": function.description or "",
        "parameters": function.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": told}


def _named(tool: NamedTool, schemas: Mapping[str, Any]) -> str:
    name = "" if tool.function is None else tool.function.name
    if name not in schemas:
        what = f"{name!r}, which is none of the tools" if name else "no function of the tools"
        raise InvalidRequest("tool_choice", f"tool_choice names {what} ({', '.join(schemas)})")
    return name


def _arguments(text: str | None) -> Any:
    if not text:
        return {}
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return read if isinstance(read, dict) else text


def _deeper_than(value: Any, levels: int) -> bool:
    """Without recursion, which is what deep nesting would break."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not layer:
            return False
    return True
