"""The function that transformers' models call in the place of their own attention.

It is registered under a name of its own for each model, as what it is told comes by way of the
object, not of arguments: some models do not pass on arguments that they do not know. A registered
name without a mask of that name also keeps transformers from building masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.kernels.base import Batch, Kernels
from octavo.scheduler.errors import InvalidRequest

# Arguments by which a model asks for what the kernels lack, and what that is.
UNSUPPORTED = {
    "softcap": "caps its attention scores",
    "s_aux": "has attention sinks",
    "sinks": "has attention sinks",
    "position_bias": "adds a bias to its attention scores",
    "alibi": "adds a bias to its attention scores",
}


@dataclass(frozen=True, slots=True)
class Pass:
    """What one forward pass reads and writes, beside what the model hands over."""

    cache: Tensor
    batch: Batch
    tick: Callable[[], None]


class PagedAttention:
    """`windows` are each layer's, as config.json has them; they are given to the kernels only if
    `windowed`. `subject` begins the sentence of a refusal. Outside of a pass it computes nothing,
    for a model without weights to be tried."""

    def __init__(
        self,
        subject: str,
        kernels: Kernels,
        kv_heads: int,
        head_dim: int,
        windows: Sequence[int | None],
        windowed: bool,
    ) -> None:
        from transformers import AttentionInterface

        self.name = f"octavo-{id(self):x}"  # the interface keeps this object, so the id is its own
        self.calls: list[int] = []  # layers, in the order in which they were attended
        self.current: Pass | None = None
        self._subject = subject
        self._kernels = kernels
        self._shape = kv_heads, head_dim
        self._windows = tuple(windows)
        self._windowed = windowed
        AttentionInterface.register(self.name, self)

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        scaling: float | None = None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        """Attends `[1, heads, tokens, dim]` queries; `[1, tokens, heads, dim]`. Raises
        `InvalidRequest` where the model wants what there is not."""
        layer = int(module.layer_idx)
        self.calls.append(layer)
        self._refuse(module, layer, key, value, attention_mask, more)
        if self.current is None:
            return torch.empty_like(query).transpose(1, 2), None
        now, dtype = self.current, value.dtype
        cache = now.cache[:, layer]
        self._kernels.write_kv(_by_token(key, dtype), _by_token(value, dtype), cache, now.batch)
        queries = _by_token(query, dtype)
        out = torch.empty_like(queries)
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        window = self._windows[layer] if self._windowed else None
        self._kernels.attention(queries, cache, now.batch, scale, out, window)
        now.tick()
        return out[None], None

    def _refuse(
        self,
        module: Any,
        layer: int,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        more: dict[str, Any],
    ) -> None:
        if mask is not None:
            raise self.refusal("has an attention mask of its own")
        if not getattr(module, "is_causal", True):
            raise self.refusal("does not attend causally")
        for name, what in UNSUPPORTED.items():
            if more.get(name) is not None:
                raise self.refusal(what)
        shapes = [(x.shape[1], x.shape[3]) for x in (key, value)]
        if shapes != [self._shape] * 2:
            raise self.refusal(
                f"has {_heads(shapes[0])} for keys and {_heads(shapes[1])} for values in a layer, "
                f"where config.json implies {_heads(self._shape)}"
            )
        window = more.get("sliding_window")
        if window != self._windows[layer]:
            raise self.refusal(
                f"attends over a window of {window} tokens in layer {layer}, where config.json "
                f"implies {self._windows[layer]}"
            )

    def refusal(self, what: str) -> InvalidRequest:
        return InvalidRequest("model", f"{self._subject} {what}; this is not supported")


def _by_token(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`[tokens, heads, dim]`, contiguous, of `[1, heads, tokens, dim]`."""
    return x[0].transpose(0, 1).contiguous().to(dtype)


def _heads(shape: tuple[int, int]) -> str:
    heads, dim = shape
    return f"{heads} heads of {dim}"
