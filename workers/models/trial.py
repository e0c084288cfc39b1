"""Whether a model of transformers' does over the paged cache what it does by itself.

Some models never call the function that should replace their attention, or leave something out
where it is replaced, and would be wrong without a word. So a model without weights is tried first,
to refuse it soon, and then the loaded one: prompts side by side, in chunks, and a last token by
itself, against transformers' own attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.mirror import Row
from octavo.scheduler.plan import Work
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.batch import Batcher
from octavo.workers.cache import Layout
from octavo.workers.models.generic import Generic
from octavo.workers.models.paged_attention import PagedAttention

LONG, SHORT = 72, 7  # tokens of the prompts that are tried
WIDEST = 600  # tokens to which the longer one is stretched, so that a window shows
# How far logits may be off, relative to them, at most places: rounding alone may choose other
# experts for a token. At the last one, which is computed alone, they may be further off.
EXACT, ROUNDED, GROSS = 1e-3, 0.1, 0.5


def try_without_weights(config: Any, attention: PagedAttention, num_layers: int) -> None:
    """Raises `InvalidRequest` as far as the trial shows why. What needs numbers, such as the choice
    of experts, ends it early, without a verdict."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), torch.inference_mode():
        try:
            whole = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, attn_implementation=attention.name
            )
        except Exception as error:
            raise attention.refusal(f"cannot be given another attention ({error})") from error
        try:
            whole.eval()(input_ids=torch.zeros(1, SHORT, dtype=torch.int64), use_cache=False)
        except InvalidRequest:
            raise
        except Exception:  # whatever it is, the loaded model will tell
            return
    verify_calls(attention, num_layers)


def verify_calls(attention: PagedAttention, num_layers: int) -> None:
    """Raises `InvalidRequest` unless every layer was attended once, in order."""
    if attention.calls != list(range(num_layers)):
        raise attention.refusal(
            f"calls its attention function {len(attention.calls)} times in {num_layers} layers"
        )


def prompts(vocab_size: int, max_model_len: int, window: int | None) -> tuple[Tensor, Tensor]:
    """Two random ones, int64, that fit a served length; beyond the window if that is feasible."""
    wanted = LONG if window is None or window + LONG > WIDEST else window + LONG
    generator = torch.Generator().manual_seed(0)
    long = torch.randint(vocab_size, (min(wanted, max_model_len),), generator=generator)
    short = torch.randint(vocab_size, (min(SHORT, max_model_len),), generator=generator)
    return long, short


def expected_logits(whole: Any, attention: PagedAttention, tokens: Tensor) -> Tensor:
    """`[tokens, vocabulary]` by transformers' own attention."""
    whole.set_attn_implementation("eager")
    logits: Tensor = whole(input_ids=tokens[None], use_cache=False).logits[0]
    whole.set_attn_implementation(attention.name)
    return logits


def verify(
    model: Generic,
    layout: Layout,
    tried: tuple[Tensor, Tensor],
    expected: tuple[Tensor, Tensor],
) -> None:
    """Raises `InvalidRequest` where the model's logits of the prompts are others than expected."""
    try:
        computed = _compute(model, layout, *tried)
    except InvalidRequest:
        raise
    except Exception as error:
        raise model.attention.refusal(f"fails over a paged cache ({error})") from error
    for found, wanted in zip(computed, expected, strict=True):
        wanted = wanted[:, : found.shape[1]].float()
        error = (found.float() - wanted).norm(dim=1) / wanted.norm(dim=1).clamp_min(1e-6)
        mostly = float(error[-(LONG // 2) :].quantile(0.75))
        bound = EXACT if layout.dtype is torch.float32 else ROUNDED
        if not (mostly <= bound and float(error[-1]) <= GROSS):
            raise model.attention.refusal(
                f"computes something else over a paged cache (logits differ by {mostly:.1%})"
            )


def _compute(model: Generic, layout: Layout, long: Tensor, short: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of both prompts. The short one comes whole, beside a chunk of the long one."""
    size = layout.block_size
    batcher = Batcher(size, long.device)
    used = -(-len(long) // size), -(-len(short) // size)
    cache = layout.allocate(sum(used) + 1, long.device)
    tables = list(range(sum(used), used[1], -1)), list(range(1, used[1] + 1))
    rows = {
        number: Row(tokens.tolist(), len(tokens), table, 0, SamplingParams())
        for number, (tokens, table) in enumerate(zip((long, short), tables, strict=True))
    }
    end = len(long) - 1
    cut = end * 2 // 5
    hidden: list[Tensor] = []
    for work in (
        [Work(0, 0, cut, False)],
        [Work(1, 0, len(short), False), Work(0, cut, end - cut, False)],
        [Work(0, end, 1, False)],
    ):
        if any(item.count for item in work):
            step = batcher.build(work, rows)
            model.kernels.begin_step(step.batch)
            made = model.forward(step.ids, step.positions, cache, step.batch, lambda: None)
            verify_calls(model.attention, layout.num_layers)
            hidden.append(made.clone())
    first, second, third = torch.cat(hidden).split((cut, len(short), end + 1 - cut))
    return model.logits(torch.cat((first, third))), model.logits(second)
