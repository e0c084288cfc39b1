"""Reads a Hugging Face `config.json`, old spellings and new, into the sizes of one model.

Everything that would change the arithmetic and is not implemented is refused by name, here, before
any weight is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.scheduler.errors import InvalidRequest

SUPPORTED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
CHECKPOINT_DTYPES = ("float32", "bfloat16", "float16")
MISTRAL_DEFAULT_WINDOW = 4096  # what an absent key means to transformers
QWEN3_DEFAULT_HEAD_DIM = 128


class NoOwnModel(InvalidRequest):
    """There is no definition of our own for the model; transformers may have one."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. `kind` is linear or llama3; the last three fields
    belong to llama3 alone."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of one decoder of the Llama family. `dtype` is the checkpoint's. If it is
    computed `by_transformers`, it may be of any family, and what only our own definition reads is
    left at nothing."""

    path: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    eos_token_ids: tuple[int, ...]
    dtype: str
    by_transformers: bool = False

    @property
    def context_length(self) -> int:
        """The longest context in tokens; linear scaling stretches the trained one."""
        if self.rope_scaling is not None and self.rope_scaling.kind == "linear":
            return int(self.max_position_embeddings * self.rope_scaling.factor)
        return self.max_position_embeddings

    @classmethod
    def from_directory(cls, path: str | Path) -> ModelConfig:
        """Raises `InvalidRequest("model", …)` where the directory holds nothing we can run."""
        directory = Path(path)
        raw = read_config(directory)
        architecture = _architecture(directory, raw)
        refuse_quantized(directory, raw)
        if raw.get("hidden_act", "silu") != "silu":
            raise NoOwnModel(
                "model",
                f"{directory} uses the activation {raw['hidden_act']!r}; only silu is supported",
            )
        try:
            heads = int(raw["num_attention_heads"])
            hidden = int(raw["hidden_size"])
            theta, scaling = _rope(directory, raw)
            qwen2 = architecture == "Qwen2ForCausalLM"
            qwen3 = architecture == "Qwen3ForCausalLM"
            attention_bias = bool(raw.get("attention_bias", False))
            default_head_dim = QWEN3_DEFAULT_HEAD_DIM if qwen3 else hidden // heads
            return cls(
                path=str(directory),
                architecture=architecture,
                vocab_size=int(raw["vocab_size"]),
                hidden_size=hidden,
                intermediate_size=int(raw["intermediate_size"]),
                num_layers=int(raw["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_dim=int(raw.get("head_dim") or default_head_dim),
                max_position_embeddings=int(raw["max_position_embeddings"]),
                rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
                rope_theta=theta,
                rope_scaling=scaling,
                tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
                qkv_bias=qwen2 or attention_bias,
                output_bias=attention_bias and not qwen2,
                mlp_bias=bool(raw.get("mlp_bias", False)),
                qk_norm=qwen3,
                sliding_window=_sliding_window(directory, architecture, raw),
                eos_token_ids=eos_token_ids_of(directory, raw),
                dtype=dtype_of(directory, raw),
            )
        except KeyError as missing:
            raise InvalidRequest(
                "model", f"{directory / 'config.json'} lacks the key {missing}"
            ) from None


def read_config(directory: Path) -> dict[str, Any]:
    """What config.json says. Raises `InvalidRequest` where there is none."""
    raw = _read_json(directory / "config.json")
    if raw is None:
        raise InvalidRequest("model", f"{directory} holds no config.json; is it a model?")
    return raw


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest("model", f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise InvalidRequest("model", f"{path} is not a JSON object")
    return content


def _architecture(directory: Path, raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or [f"{str(raw.get('model_type')).capitalize()}ForCausalLM"]
    if names[0] not in SUPPORTED:
        raise NoOwnModel(
            "model",
            f"{directory} is a {names[0]}, which is not supported; supported are "
            f"{', '.join(SUPPORTED)}",
        )
    return str(names[0])


def refuse_quantized(directory: Path, raw: dict[str, Any]) -> None:
    """Raises `InvalidRequest` naming the way in which a checkpoint is quantized."""
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise InvalidRequest(
            "model",
            f"{directory} is quantized ({method}), which is not supported; "
            "use a float32, bfloat16 or float16 checkpoint",
        )


def _rope(directory: Path, raw: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    """Newer files keep base and scaling together in `rope_parameters`."""
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(kind, float(parameters["factor"]))
    if kind == "llama3":
        return theta, RopeScaling(
            kind,
            float(parameters["factor"]),
            float(parameters["low_freq_factor"]),
            float(parameters["high_freq_factor"]),
            int(parameters["original_max_position_embeddings"]),
        )
    raise NoOwnModel(
        "model",
        f"{directory} scales its rotary embedding by {kind!r}, which is not supported; "
        "supported are default, linear, llama3",
    )


def _sliding_window(directory: Path, architecture: str, raw: dict[str, Any]) -> int | None:
    """Of all layers alike."""
    if architecture.startswith("Qwen") and raw.get("use_sliding_window"):
        raise NoOwnModel(
            "model", f"{directory} has a sliding window in some layers, which is not supported"
        )
    if architecture != "MistralForCausalLM":
        return None
    window = raw.get("sliding_window", MISTRAL_DEFAULT_WINDOW)
    return None if window is None else int(window)


def eos_token_ids_of(directory: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json often names more end tokens than config.json does."""
    found: list[int] = []
    for source in (_read_json(directory / "generation_config.json") or {}, raw):
        ids = source.get("eos_token_id")
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return tuple(dict.fromkeys(int(token) for token in found))


def dtype_of(directory: Path, raw: dict[str, Any]) -> str:
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in CHECKPOINT_DTYPES:
        raise InvalidRequest(
            "model",
            f"{directory} has the data type {name}; supported are {', '.join(CHECKPOINT_DTYPES)}",
        )
    return name
