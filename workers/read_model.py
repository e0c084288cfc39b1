"""Which definition computes a model, ours or transformers', and the sizes that it is to have.

Knows no torch, and reads config.json alone. transformers' own reading of it, which takes a second
to import, is called only for models that it computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.model_config import (
    ModelConfig,
    NoOwnModel,
    dtype_of,
    eos_token_ids_of,
    read_config,
    refuse_quantized,
)

LAYER_TYPES = ("full_attention", "sliding_attention")
# Others turn a key by angles that depend on the longest context beside it, yet keys are kept.
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional")
# What a config says of arithmetic that the kernels lack.
REFUSED_KEYS = {
    "attn_logit_softcapping": "caps its attention scores",
    "kv_lora_rank": "compresses its keys and values (MLA)",
    "attention_chunk_size": "attends in chunks",
}


def read_model(path: str | Path, model_impl: str = "auto") -> ModelConfig:
    """`model_impl` is one of `MODEL_IMPLS`; `auto` takes ours where there is one. Raises
    `InvalidRequest("model", …)` where the directory holds nothing that we can run."""
    if model_impl == "transformers":
        return _of_transformers(Path(path))
    try:
        return ModelConfig.from_directory(path)
    except NoOwnModel:
        if model_impl == "octavo":
            raise
    return _of_transformers(Path(path))


def _of_transformers(directory: Path) -> ModelConfig:
    raw = read_config(directory)
    refuse_quantized(directory, raw)
    config = transformers_config(directory)
    architecture = _architecture(directory, raw, config)
    refuse_arithmetic(f"{directory} is a {architecture}, which", config)
    try:
        heads, hidden = int(config.num_attention_heads), int(config.hidden_size)
        return ModelConfig(
            path=str(directory),
            architecture=architecture,
            vocab_size=int(config.vocab_size),
            hidden_size=hidden,
            intermediate_size=0,
            num_layers=int(config.num_hidden_layers),
            num_heads=heads,
            num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
            max_position_embeddings=int(config.max_position_embeddings),
            rms_norm_eps=0.0,
            rope_theta=0.0,
            rope_scaling=None,
            tie_word_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
            qk_norm=False,
            sliding_window=next((w for w in layer_windows(config) if w is not None), None),
            eos_token_ids=eos_token_ids_of(directory, raw),
            dtype=dtype_of(directory, raw),
            by_transformers=True,
        )
    except Exception as error:  # configs have properties, which raise what they will
        reason = str(error).split("\n")[0].split(". ")[0]
        raise InvalidRequest(
            "model",
            f"{directory} is a {architecture}, whose layers are not all alike, or which does not "
            f"say how large they are ({reason}); this is not supported",
        ) from None


def layer_windows(config: Any) -> list[int | None]:
    """How many tokens each layer sees at most, by transformers' config; None sees all."""
    window = getattr(config, "sliding_window", None)
    count = int(config.num_hidden_layers)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * count
    return [window if kind == "sliding_attention" else None for kind in kinds]


def refuse_arithmetic(subject: str, config: Any) -> None:
    """Raises `InvalidRequest` where a config speaks of what would go wrong here, perhaps unseen by
    a short trial. `subject` begins the sentence."""
    if getattr(config, "is_encoder_decoder", False):
        raise _refusal(subject, "is no decoder alone")
    for key, what in REFUSED_KEYS.items():
        if getattr(config, key, None) is not None:
            raise _refusal(subject, f"{what} ({key} in config.json)")
    strange = sorted(set(getattr(config, "layer_types", None) or ()) - set(LAYER_TYPES))
    if strange:
        raise _refusal(subject, f"has layers of the kind {', '.join(strange)}")
    for key in ("rope_parameters", "rope_scaling"):  # as newer and older configs call it
        for kind in _rope_types(getattr(config, key, None)):
            if kind not in ROPE_TYPES:
                raise _refusal(subject, f"scales its rotary embedding by {kind!r}")


def _refusal(subject: str, what: str) -> InvalidRequest:
    return InvalidRequest("model", f"{subject} {what}; this is not supported")


def _rope_types(parameters: Any) -> Iterator[str]:
    """There may be a set of parameters for each kind of layer."""
    if not isinstance(parameters, dict):
        return
    if "rope_type" in parameters:
        yield str(parameters["rope_type"])
    for inner in parameters.values():
        yield from _rope_types(inner)


def transformers_config(directory: str | Path) -> Any:
    """Code that lies beside a checkpoint is never run. Raises `InvalidRequest`."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = " ".join(str(error).split("\n")[0].split())
        raise InvalidRequest(
            "model", f"{directory}: transformers cannot read its config.json: {reason}"
        ) from None


def _architecture(directory: Path, raw: dict[str, Any], config: Any) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    decoder = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    name = (raw.get("architectures") or [decoder])[0]
    if decoder is None or name != decoder:
        raise InvalidRequest(
            "model",
            f"{directory} is a {name or config.model_type}, which is not supported: neither octavo "
            "nor transformers has a decoder of text for it",
        )
    return str(name)
