"""Reads a model's weights, for our own definition of it or for transformers'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from octavo.kernels.base import Kernels
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.cache import Layout
from octavo.workers.config import WorkerConfig
from octavo.workers.loader import Checkpoint, some
from octavo.workers.model_config import ModelConfig
from octavo.workers.models import trial
from octavo.workers.models.generic import Generic
from octavo.workers.models.llama import Llama
from octavo.workers.models.model import Model
from octavo.workers.models.paged_attention import PagedAttention
from octavo.workers.models.weights import ROTARY_BUFFER, load_weights
from octavo.workers.parallel import Group, Shard
from octavo.workers.read_model import layer_windows, transformers_config

# Tables and masks that old checkpoints carry, and that are computed.
IGNORED_BUFFERS = (
    ROTARY_BUFFER,
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
)


@dataclass(frozen=True, slots=True)
class Opening:
    """All that decides how a rank's share of a model is made."""

    config: WorkerConfig
    model: ModelConfig
    shard: Shard
    layout: Layout
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    group: Group
    max_model_len: int

    def open(self) -> Model:
        """Raises `InvalidRequest` where the checkpoint or the model cannot be served, if possible
        before the weights are read."""
        with Checkpoint(self.config.model) as checkpoint:
            if not self.model.by_transformers:
                return self._own(checkpoint)
        return self._generic()

    def _own(self, checkpoint: Checkpoint) -> Llama:
        weights = load_weights(
            self.model,
            self.shard,
            checkpoint,
            self.dtype,
            self.device,
            self.kernels,
            self.config.quantization,
            fuse_gate=not self.config.lora_modules,
        )
        return Llama(self.model, self.shard, weights, self.kernels, self.group, self.max_model_len)

    def _generic(self) -> Generic:
        model, layout = self.model, self.layout
        subject = f"{model.path} is a {model.architecture}, whose definition by transformers"
        if self.config.quantization is not None:
            raise InvalidRequest(
                "quantization",
                f"{subject} cannot be quantized while it is loaded; leave out --quantization",
            )
        config = transformers_config(model.path)
        windowed = model.sliding_window is not None and self.max_model_len > model.sliding_window
        attention = PagedAttention(
            *(subject, self.kernels, layout.kv_heads, layout.head_dim),
            *(layer_windows(config), windowed),
        )
        trial.try_without_weights(config, attention, model.num_layers)
        whole = self._read(attention)
        tried = trial.prompts(model.vocab_size, self.max_model_len, model.sliding_window)
        long, short = (tokens.to(self.device) for tokens in tried)
        with torch.inference_mode():
            expected = trial.expected(whole, attention, long, short)
            made = Generic(model, whole, attention, self.kernels)
            # A narrower cache is the user's choice, and no fault of the model.
            trial.verify(made, replace(layout, dtype=self.dtype), (long, short), expected)
        return made

    def _read(self, attention: PagedAttention) -> Any:
        """The model with its weights, as transformers makes it."""
        from transformers import AutoModelForCausalLM

        whole: Any
        found: Any
        loader: Any = AutoModelForCausalLM
        try:
            with _without_progress():
                whole, found = loader.from_pretrained(
                    self.model.path,
                    dtype=self.dtype,
                    attn_implementation=attention.name,
                    trust_remote_code=False,
                    local_files_only=True,
                    use_safetensors=True,
                    output_loading_info=True,
                )
        except (RuntimeError, ValueError, OSError) as error:
            reason = str(error).split("\n")[0]
            raise InvalidRequest(
                "model", f"{self.model.path}: transformers cannot load its weights: {reason}"
            ) from None
        if missing := sorted(found["missing_keys"]):
            raise InvalidRequest(
                "model", f"{self.model.path} lacks {some(missing)}, which config.json implies"
            )
        if extra := sorted(
            name for name in found["unexpected_keys"] if not name.endswith(IGNORED_BUFFERS)
        ):
            raise InvalidRequest(
                "model",
                f"{self.model.path} holds tensors that config.json does not explain: {some(extra)}",
            )
        return whole.eval().to(self.device)


@contextmanager
def _without_progress() -> Iterator[None]:
    """The bar that transformers draws while it loads would stand among a server's lines."""
    from transformers.utils import logging as messages

    logging: Any = messages
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
