"""Any decoder that transformers has, over our paged cache: the slower model, of great breadth.

transformers defines the model, reads its weights and computes all but attention. A step's rows lie
one behind another in a batch of one, with the positions that each token has in its own row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.kernels.base import Batch, Kernels
from octavo.workers.model_config import ModelConfig
from octavo.workers.models.adapters import Segment
from octavo.workers.models.paged_attention import PagedAttention, Pass


@dataclass(frozen=True, slots=True)
class _Outputs:
    """A decoder's, of whatever class a model expects: all but the hidden states is None."""

    last_hidden_state: Tensor | None

    def __getattr__(self, _: str) -> None:
        return None

    def __getitem__(self, index: int) -> Tensor | None:
        return self.last_hidden_state if index == 0 else None


class _Known(nn.Module):
    """Stands for a decoder whose hidden states are known, so that what a model makes of them, with
    its own scales and caps, is had without a second definition of it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Tensor | None = None

    @property
    def decoder(self) -> _Known:
        """Where some models keep the decoder."""
        return self

    def forward(self, *_: Any, **__: Any) -> _Outputs:
        return _Outputs(self.hidden)


class Generic:
    """`whole` is a transformers model of causal language modelling that attends by `attention`; it
    is taken apart."""

    recordable = False  # a model may look into its tensors, as mixtures of experts do

    def __init__(
        self, model: ModelConfig, whole: Any, attention: PagedAttention, kernels: Kernels
    ) -> None:
        self.kernels = kernels
        self._model = model
        self.attention = attention
        self._decoder = whole.base_model
        self._known = _Known()
        setattr(whole, whole.base_model_prefix, self._known)
        self._whole = whole

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Tensor,
        batch: Batch,
        tick: Callable[[], None],
        segments: Sequence[Segment] = (),
        wanted: Tensor | None = None,
    ) -> Tensor:
        """See `Model`. `tick` is called after each layer's attention."""
        assert not segments, "adapters are refused at the start"
        with self._passing(Pass(cache, batch, tick)):
            out = self._decoder(
                input_ids=ids[None].long(), position_ids=positions[None].long(), use_cache=False
            )
        assert len(self.attention.calls) == self._model.num_layers, "as when it was tried"
        hidden: Tensor = out.last_hidden_state
        return hidden[0] if wanted is None else hidden[0].index_select(0, wanted)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Model`."""
        self._known.hidden = hidden[None]
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        logits: Tensor = self._whole(input_ids=ids, use_cache=False).logits
        self._known.hidden = None
        return logits[0, :, : self._model.vocab_size]

    @contextmanager
    def _passing(self, now: Pass) -> Iterator[None]:
        self.attention.calls.clear()
        self.attention.current = now
        try:
            yield
        finally:
            self.attention.current = None
