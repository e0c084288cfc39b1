"""LoRA adapters as PEFT saves them: what each adds to a model, found out before any weight is read.

An adapter adds `scale * B A`, a product of low rank, to some of a model's projections (Hu et al.
2021). Whatever in PEFT's format would change the arithmetic and is not implemented is refused by
name, and so is what does not fit the model. Knows no torch: whoever only plans need not wait for
it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.lora_modules import parse_modules
from octavo.workers.model_config import ModelConfig

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
DTYPES = ("F64", "F32", "BF16", "F16")
SHOWN = 5  # names in an error message

_PREFIX = "base_model.model."  # PEFT's, before the base model's own names
_TENSOR = re.compile(
    re.escape(_PREFIX) + r"(?P<module>model\.layers\.(?P<layer>\d+)\."
    r"(?P<projection>(?:self_attn|mlp)\.\w+))\.lora_(?P<side>[AB])\.weight"
)
_UNSERVED = (  # keys of PEFT's file that change the arithmetic, unless they say nothing
    *("use_dora", "fan_in_fan_out", "lora_bias", "modules_to_save", "layer_replication"),
    *("trainable_token_indices", "target_parameters", "use_qalora", "alora_invocation_tokens"),
    *("arrow_config", "use_bdlora"),
)
_MOVES_THE_BASE = (
    "pissa",
    "olora",
    "corda",
    "loftq",
    "lora_ga",
)  # ways to begin that change its weights


@dataclass(frozen=True, slots=True)
class Update:
    """Added to one projection: `scale * B A`, with A `[rank, inputs]` and B `[outputs, rank]`."""

    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """`updates` by projection, such as `model.layers.0.self_attn.q_proj`; `weights` is the file
    that holds them."""

    name: str
    weights: Path
    updates: Mapping[str, Update]


def a_of(module: str) -> str:
    """The name in the file of a projection's A."""
    return f"{_PREFIX}{module}.lora_A.weight"


def b_of(module: str) -> str:
    """The name in the file of a projection's B."""
    return f"{_PREFIX}{module}.lora_B.weight"


def read_adapters(
    given: Sequence[str], model: ModelConfig, max_rank: int
) -> tuple[AdapterFile, ...]:
    """What the adapters of `--lora-modules` add to `model`. Raises `InvalidRequest` naming the file
    and the module at fault, or the model where it can have none."""
    if given and model.by_transformers:
        raise _wrong(
            f"{model.path} is a {model.architecture}, which is computed by transformers and can "
            "have no adapters; leave out --lora-modules"
        )
    return tuple(
        _read(name, Path(module.path).expanduser(), model, max_rank)
        for name, module in parse_modules(given).items()
    )


def _read(name: str, directory: Path, model: ModelConfig, max_rank: int) -> AdapterFile:
    config = _config(name, directory)
    weights = directory / WEIGHTS_FILE
    sizes = _sizes(model)
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    strange: list[str] = []
    for tensor, shape in _shapes(name, weights).items():
        parts = _TENSOR.fullmatch(tensor)
        if parts is None or parts["projection"] not in sizes:
            strange.append(tensor)
            continue
        if int(parts["layer"]) >= model.num_layers:
            raise _wrong(
                f"adapter {name!r} changes {parts['module']}, but the model has "
                f"{model.num_layers} layers; was it trained on another model?"
            )
        found.setdefault(parts["module"], {})[parts["side"]] = shape
    if strange:
        more = f" and {len(strange) - SHOWN} more" if len(strange) > SHOWN else ""
        raise _wrong(
            f"adapter {name!r} holds {', '.join(sorted(strange)[:SHOWN])}{more}, which cannot be "
            f"served; adapters may change {', '.join(sizes)}"
        )
    if not found:
        raise _wrong(f"adapter {name!r}: {weights} holds no weights")
    updates = {}
    for module, shapes in sorted(found.items()):
        update = config.update(module)
        outputs, inputs = sizes[module.split(".", 3)[3]]
        _verify(name, module, shapes, {"A": (update.rank, inputs), "B": (outputs, update.rank)})
        if update.rank > max_rank:
            raise InvalidRequest(
                "max_lora_rank",
                f"adapter {name!r} has rank {update.rank} at {module}, above --max-lora-rank "
                f"{max_rank}; set that to {update.rank}",
            )
        updates[module] = update
    return AdapterFile(name, weights, updates)


def _verify(
    name: str,
    module: str,
    found: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, tuple[int, ...]],
) -> None:
    for side, shape in wanted.items():
        if side not in found:
            raise _wrong(f"adapter {name!r} lacks lora_{side} of {module}")
        if found[side] != shape:
            raise _wrong(
                f"adapter {name!r}: lora_{side} of {module} has the shape {list(found[side])}, but "
                f"the model and {CONFIG_FILE} imply {list(shape)}; was it trained on another model?"
            )


def _sizes(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the projections that an adapter may change."""
    hidden, inner = model.hidden_size, model.intermediate_size
    heads, kv_heads = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    return {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


@dataclass(frozen=True, slots=True)
class _Config:
    rank: int
    alpha: float
    ranks: Mapping[str, int]  # by pattern
    alphas: Mapping[str, float]
    by_root: bool  # scaled by the root of the rank (Kalajdzievski 2023)

    def update(self, module: str) -> Update:
        rank = _by_pattern(self.ranks, module, self.rank)
        alpha = _by_pattern(self.alphas, module, self.alpha)
        return Update(rank, alpha / (math.sqrt(rank) if self.by_root else rank))


def _by_pattern(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """PEFT's rule: a key is the end of a module's name, or a regular expression for it."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _config(name: str, directory: Path) -> _Config:
    path = directory / CONFIG_FILE
    try:
        raw = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise _wrong(
            f"adapter {name!r}: {directory} holds no {CONFIG_FILE}; name what PEFT saved"
        ) from None
    except (OSError, ValueError) as error:
        raise _wrong(f"adapter {name!r}: cannot read {path}: {error}") from None
    if not isinstance(raw, dict) or raw.get("peft_type") != "LORA":
        kind = raw.get("peft_type") if isinstance(raw, dict) else raw
        raise _wrong(f"adapter {name!r} is of the type {kind!r}; only LORA can be served")
    for key in _UNSERVED:
        if raw.get(key):
            raise _wrong(f"adapter {name!r} sets {key} to {raw[key]!r}, which cannot be served")
    if raw.get("bias", "none") != "none":
        raise _wrong(f"adapter {name!r} changes biases ({raw['bias']!r}), which cannot be served")
    begin = raw.get("init_lora_weights")
    if isinstance(begin, str) and begin.startswith(_MOVES_THE_BASE):
        raise _wrong(
            f"adapter {name!r} was begun by {begin!r}, which changes the model itself; save it "
            "with PEFT's path_initial_model_for_weight_conversion"
        )
    try:
        config = _Config(
            rank=int(raw["r"]),
            alpha=float(raw["lora_alpha"]),
            ranks={str(key): int(rank) for key, rank in (raw.get("rank_pattern") or {}).items()},
            alphas={str(key): float(a) for key, a in (raw.get("alpha_pattern") or {}).items()},
            by_root=bool(raw.get("use_rslora", False)),
        )
        for pattern in (*config.ranks, *config.alphas):
            re.compile(pattern)
    except KeyError as missing:
        raise _wrong(f"adapter {name!r}: {path} lacks the key {missing}") from None
    except (TypeError, ValueError, AttributeError, re.error) as error:
        raise _wrong(f"adapter {name!r}: {path} cannot be understood: {error}") from None
    if min((config.rank, *config.ranks.values())) < 1:
        raise _wrong(f"adapter {name!r}: ranks in {path} must be at least 1")
    if not all(map(math.isfinite, (config.alpha, *config.alphas.values()))):
        raise _wrong(f"adapter {name!r}: the alphas in {path} must be finite")
    return config


def _shapes(name: str, path: Path) -> dict[str, tuple[int, ...]]:
    """Of all tensors, from the file's header alone."""
    if not path.exists():
        raise _wrong(
            f"adapter {name!r}: there is no {path}; only safetensors can be served, so save it "
            "with PEFT's safe_serialization"
        )
    shapes = {}
    try:
        with safe_open(path, framework="np") as file:
            for tensor in file.keys():  # noqa: SIM118 (not a dict)
                part = file.get_slice(tensor)
                if part.get_dtype() not in DTYPES:
                    raise _wrong(
                        f"adapter {name!r}: {tensor} has the data type {part.get_dtype()}; "
                        f"supported are {', '.join(DTYPES)}"
                    )
                shapes[tensor] = tuple(part.get_shape())
    except (SafetensorError, OSError) as error:
        raise _wrong(f"adapter {name!r}: cannot read {path}: {error}") from None
    return shapes


def _wrong(message: str) -> InvalidRequest:
    return InvalidRequest("lora_modules", message)
