"""The arguments of a Serve application, as a Serve config file gives them: `args` below.

    applications:
    - import_path: octavo.cluster.distributed.application:app
      args:
        models:
        - model: Qwen/Qwen3-0.6B
          num_replicas: 2

A model's arguments are the settings of `EngineConfig` under their own names and with their own
types and defaults, so they are called as `octavo serve`'s flags are. Knows nothing of Ray.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from octavo.cluster.api.settings import CHAT_SETTINGS, FrontSettings, chat_settings
from octavo.cluster.autoscaling import Autoscaling
from octavo.cluster.cli.sizes import parse_bytes
from octavo.cluster.config import EngineConfig
from octavo.cluster.planning import engine_settings
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.config import CACHE_DTYPES, DEVICES, DTYPES, MODEL_IMPLS, QUANTIZATIONS
from octavo.workers.lora_modules import parents, parse_modules

INGRESS = "Ingress"  # the deployment that is no model
DRAIN_SECONDS = 30.0
KEYS = ("api_key", "api_keys", "api_key_file", "admin_api_key")

_FOUND_OUT = ("model", "served_model_names", "revision")  # not asked for under these names
_OF_THE_FRONT = ("seed", "failover_timeout", *CHAT_SETTINGS)  # settings of `FrontSettings`
_SHARED = ("allowed_origins", "request_timeout", "enable_log_requests")  # so are these, of all
_NOT_OF_A_REPLICA = (
    *_OF_THE_FRONT,
    *("served_model_name", "num_replicas", "autoscaling", "drain_timeout", "max_surge_percent"),
)
_SPECIAL: dict[str, tuple[Any, Any]] = {
    "dtype": (Literal[DTYPES], "auto"),
    "kv_cache_dtype": (Literal[CACHE_DTYPES], "auto"),
    "model_impl": (Literal[MODEL_IMPLS], "auto"),
    "device": (Literal[DEVICES], "auto"),
    "quantization": (Literal[QUANTIZATIONS] | None, None),
    "kv_cache_memory_bytes": (int | str | None, None),
}
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>[^`]*)`)?$", re.S)


def _model_fields() -> list[tuple[str, Any, Any]]:
    """Name, type and default of all that one model may be told."""
    fields: list[tuple[str, Any, Any]] = [
        ("model", str | None, None),
        ("served_model_name", str | list[str] | None, None),
        ("resources", dict[str, Annotated[float, msgspec.Meta(gt=0)]], {}),
        ("autoscaling", Autoscaling | None, None),
        ("drain_timeout", Annotated[float, msgspec.Meta(ge=0)], DRAIN_SECONDS),
        ("max_surge_percent", Annotated[int, msgspec.Meta(ge=0, le=100)], 0),
    ]
    hints = typing.get_type_hints(EngineConfig) | typing.get_type_hints(FrontSettings)
    of_engine = [f for f in dataclasses.fields(EngineConfig) if f.name not in _FOUND_OUT]
    of_front = [f for f in dataclasses.fields(FrontSettings) if f.name in _OF_THE_FRONT]
    for field in (*of_front, *of_engine):
        kind, default = _SPECIAL.get(field.name, (hints[field.name], field.default))
        fields.append((field.name, kind, default))
    return fields


ModelArguments = msgspec.defstruct(
    "ModelArguments", _model_fields(), kw_only=True, forbid_unknown_fields=True
)
"""One model: the settings of `EngineConfig`, and
`model`: a directory or hub name on the cluster's machines, None for the embedded model;
`served_model_name`: one name or several, answers carry the first;
`seed`, `failover_timeout`, `enable_auto_tool_choice`, `tool_call_parser`, `reasoning_parser`,
`generation_config`: see `octavo serve --help`;
`resources`: custom Ray resources that each rank takes, which says on what nodes it may run;
`autoscaling`: what the number of replicas follows, in place of `num_replicas`;
`drain_timeout`: seconds in which a replica that is to go may finish what it has begun; what is left
then goes on elsewhere;
`max_surge_percent`: replicas beyond the wanted ones, in percent of them, that may start before old
ones are stopped when the model is updated: no wait, where there is room for them."""


class Arguments(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All of an application. Clients reach every model through each of the `ingress_replicas`; for
    the rest see `octavo serve --help`."""

    models: Annotated[list[ModelArguments], msgspec.Meta(min_length=1)]  # type: ignore[valid-type]
    ingress_replicas: Annotated[int, msgspec.Meta(ge=1)] = 1
    allowed_origins: tuple[str, ...] = ()
    request_timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    enable_log_requests: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Application:
    """Arguments that were checked as far as that can be done without the models. Each of `models`
    has the attributes of `octavo serve`'s parsed flags that concern one model; `shared` are those
    settings of `FrontSettings` that concern all of them."""

    models: tuple[argparse.Namespace, ...]
    ingress_replicas: int
    shared: Mapping[str, Any]


def read_application(given: Mapping[str, Any]) -> Application:
    """Raises `InvalidRequest` with one sentence that says where in the arguments it went wrong."""
    try:
        arguments = msgspec.convert(dict(given), Arguments)
    except msgspec.ValidationError as error:
        raise InvalidRequest("args", _sentence(str(error), given)) from None
    models = [_read_model(number, each) for number, each in enumerate(arguments.models)]
    names: list[str] = []
    for number, model in enumerate(models):
        for name in (*names_of(model), *adapters_of(model)):
            if name in names:
                raise _wrong(number, f"another model is called {name!r}; set served_model_name")
            names.append(name)
    deployments = [deployment_name(model) for model in models]
    for number, deployment in enumerate(deployments):
        if deployment == INGRESS or deployment in deployments[:number]:
            raise _wrong(
                number,
                f"{names_of(models[number])[0]!r} cannot be told from another deployment; set a "
                "served_model_name that differs in more than punctuation",
            )
    shared = {name: getattr(arguments, name) for name in _SHARED}
    try:
        FrontSettings("", ("",), **shared)
    except InvalidRequest as error:
        raise InvalidRequest("args", f"args: {error.message}") from None
    return Application(tuple(models), arguments.ingress_replicas, shared)


def names_of(model: argparse.Namespace) -> tuple[str, ...]:
    """The names that requests may use, without a look at the machine that has the model."""
    if model.served_model_name:
        return tuple(model.served_model_name)
    if model.model is None:
        from octavo.cluster.checkpoints.embedded import NAME

        return (NAME,)
    if model.model.startswith(("/", "~")):
        return (model.model.rstrip("/").rpartition("/")[2],)
    return (model.model,)


def adapters_of(model: argparse.Namespace) -> dict[str, str | None]:
    """The names of the model's adapters, which requests may use too, and their parents'."""
    return parents(model.lora_modules or ())


def deployment_name(model: argparse.Namespace) -> str:
    """What Serve calls the model's replicas: `Qwen/Qwen3-0.6B` is `Qwen--Qwen3-0.6B`. It becomes
    part of file names."""
    return re.sub(r"[^\w.-]", "-", names_of(model)[0].replace("/", "--"))


def most_replicas(model: argparse.Namespace) -> int:
    """How many replicas there may be at one time, updates apart."""
    count: int = model.autoscaling.max_replicas if model.autoscaling else model.num_replicas
    return count


def least_replicas(model: argparse.Namespace) -> int:
    """How many replicas there are when nothing is to do."""
    count: int = model.autoscaling.min_replicas if model.autoscaling else model.num_replicas
    return count


def replica_arguments(model: argparse.Namespace) -> dict[str, Any]:
    """What a replica is made from: it must be replaced where this changes, and only then."""
    return {name: value for name, value in vars(model).items() if name not in _NOT_OF_A_REPLICA}


def front_arguments(model: argparse.Namespace) -> dict[str, Any]:
    """What an ingress is told of the model."""
    names = ("model", "served_model_name", *_OF_THE_FRONT)
    sleeps = least_replicas(model) == 0
    return {"scale_to_zero": sleeps, "adapters": adapters_of(model)} | {
        name: getattr(model, name) for name in names
    }


def draft_config(model: argparse.Namespace) -> EngineConfig:
    """The model's settings before it is known where the model lies. Raises `InvalidRequest`."""
    settings = engine_settings(model) | {"model": model.model or ""}
    return EngineConfig(**settings, served_model_names=names_of(model))


def _read_model(number: int, given: Any) -> argparse.Namespace:
    values = {name: getattr(given, name) for name in given.__struct_fields__}
    names, size = values["served_model_name"], values["kv_cache_memory_bytes"]
    if isinstance(names, str):
        values["served_model_name"] = [names]
    if isinstance(size, str):
        try:
            values["kv_cache_memory_bytes"] = parse_bytes(size)
        except ValueError as error:
            raise _wrong(number, f"kv_cache_memory_bytes: {error}") from None
    if values["model"] == "":
        raise _wrong(number, "model is empty; leave it out for the embedded model")
    if values["model"] is not None and values["model"].startswith("."):
        raise _wrong(
            number, f"model {values['model']!r} is relative to no known place; give the whole path"
        )
    model = argparse.Namespace(**values)
    try:
        draft_config(model)
        FrontSettings("", names_of(model), **chat_settings(model))
        _verify_autoscaling(model)
        _verify_adapters(model)
    except InvalidRequest as error:
        raise _wrong(number, without_dashes(error.message)) from None
    return model


def _verify_adapters(model: argparse.Namespace) -> None:
    for name, module in parse_modules(model.lora_modules or ()).items():
        if not module.path.startswith(("/", "~")):
            raise InvalidRequest(
                "lora_modules",
                f"lora_modules has {name!r} at {module.path!r}, which is relative to no known "
                "place; give the whole path",
            )


def _verify_autoscaling(model: argparse.Namespace) -> None:
    if model.autoscaling is None:
        return
    if model.num_replicas != 1:
        raise InvalidRequest(
            "num_replicas",
            f"num_replicas is {model.num_replicas}, but autoscaling decides; leave it out, or set "
            "autoscaling.min_replicas",
        )
    model.autoscaling.verify()


def without_dashes(message: str) -> str:
    """A message about flags as one about arguments: `--block-size` becomes `block_size`."""
    return re.sub(r"--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", "_"), message)


def _wrong(number: int, message: str) -> InvalidRequest:
    return InvalidRequest("args", f"args.models[{number}]: {message}")


def _sentence(message: str, given: Mapping[str, Any]) -> str:
    """msgspec's message with the offending value, and what to do."""
    parts = _AT.match(message)
    assert parts is not None, "everything matches"
    what, where = parts["what"], parts["where"] or ""
    place = f"args.{where}" if where else "args"
    if unknown := re.match(r"Object contains unknown field `(.*)`", what):
        return f"{place} has no argument {unknown[1]!r}; {_instead(unknown[1], where)}"
    if missing := re.match(r"Object missing required field `(.*)`", what):
        return f"{place}: {missing[1]} is missing"
    value = _look_up(given, where)
    return f"{place}: {what[:1].lower()}{what[1:]}, got {value!r}{_choices(where)}"


def _instead(name: str, where: str) -> str:
    if name in KEYS:
        return (
            "keys are read from $OCTAVO_API_KEY and $OCTAVO_ADMIN_API_KEY where the ingress runs, "
            "and from the file there that $OCTAVO_API_KEY_FILE names"
        )
    known = list((ModelArguments if where else Arguments).__struct_fields__)
    if where.endswith(".autoscaling"):
        known = list(Autoscaling.__struct_fields__)
    elif not where and name in ModelArguments.__struct_fields__:
        return f"it belongs to a model: args.models[0].{name}"
    close = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def _choices(where: str) -> str:
    """What may stand there, if that is one of a few words."""
    name = where.rpartition(".")[2]
    kind = {field: kind for field, kind, _ in _model_fields()}.get(name)
    kinds = [kind, *typing.get_args(kind)]  # a choice, or a choice or None
    words = [typing.get_args(each) for each in kinds if typing.get_origin(each) is Literal]
    return f"; choose {', '.join(words[0])}" if words else ""


def _look_up(given: Any, where: str) -> Any:
    """The value at a path such as `models[0].block_size`; values of unknown keys are the whole."""
    for key, index in re.findall(r"([\w-]+)|\[(\d+)\]", where):
        try:
            given = given[key] if key else given[int(index)]
        except (KeyError, IndexError, TypeError):
            break
    return given
