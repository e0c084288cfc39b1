"""Whether a model of transformers' does over the paged cache what it does by itself.

Some models never call the function that should replace their attention, or leave something out
where it is replaced, and would be wrong without a word. So a model without weights is tried first,
to refuse it soon, and then the loaded one: prompts side by side, in chunks, and a last token by
itself, against transformers' own attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
LAST = LONG // 2  # of its tokens, whose logits are compared: all would take much memory
# How far logits may be off, relative to them, at most places: rounding alone may choose other
# experts for a token. At the last one, which is computed alone, they may be further off.
EXACT, ROUNDED, GROSS = 1e-3, 0.1, 0.5


def try_without_weights(config: Any, attention: PagedAttention, num_layers: int) -> None:
    """Raises `InvalidRequest` as far as the trial shows why. What needs numbers, such as the choice
    of experts, ends it early, without a verdict."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), torch.inference_mode():
        with _explained(attention, "cannot be given another attention"):
            whole = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, attn_implementation=attention.name
            )
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


@dataclass(frozen=True, slots=True)
class Expected:
    """By transformers' own attention: last hidden states of the end of the long prompt, `[LAST,
    hidden]`, and logits of the short one, `[SHORT, vocabulary]`."""

    hidden: Tensor
    logits: Tensor


def expected(whole: Any, attention: PagedAttention, long: Tensor, short: Tensor) -> Expected:
    """Of a model that is still whole. Raises `InvalidRequest` where it does not run."""
    with _explained(attention, "fails by itself"):
        whole.set_attn_implementation("eager")
        out = whole.base_model(input_ids=long[None], use_cache=False)
        logits = whole(input_ids=short[None], use_cache=False).logits[0]
        whole.set_attn_implementation(attention.name)
        return Expected(out.last_hidden_state[0, -LAST:], logits)


def verify(
    model: Generic, layout: Layout, tried: tuple[Tensor, Tensor], expected: Expected
) -> None:
    """Raises `InvalidRequest` where the model's logits of the prompts are others than expected."""
    with _explained(model.attention, "fails over a paged cache"):
        long, short = _compute(model, layout, *tried)
    # The short one's are made by the model while it was whole, so that they tell of logits, too.
    _compare(model, layout, model.logits(short), expected.logits)
    found = model.logits(long[-LAST:]).clone()
    _compare(model, layout, found, model.logits(expected.hidden))


@contextmanager
def _explained(attention: PagedAttention, what: str) -> Iterator[None]:
    """Whatever a model raises is a reason to refuse it, but want of memory is not its own."""
    try:
        yield
    except (InvalidRequest, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split("\n")[0].split())
        if not reason or isinstance(error, KeyError):  # which says a key and no more
            reason = type(error).__name__
        raise attention.refusal(f"{what} ({reason})") from error


def _compare(model: Generic, layout: Layout, found: Tensor, wanted: Tensor) -> None:
    wanted = wanted[:, : found.shape[1]].float()
    off = (found.float() - wanted).norm(dim=1) / wanted.norm(dim=1).clamp_min(1e-6)
    mostly, last = float(off.quantile(0.75)), float(off[-1])
    bound = EXACT if layout.dtype is torch.float32 else ROUNDED
    if not (mostly <= bound and last <= GROSS):
        raise model.attention.refusal(
            f"computes something else over a paged cache (logits differ by {mostly:.1%})"
        )


def _compute(model: Generic, layout: Layout, long: Tensor, short: Tensor) -> tuple[Tensor, Tensor]:
    """Last hidden states of both prompts. The short one comes whole, beside a chunk of the long
    one."""
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
    passed: list[Tensor] = []
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
            passed.append(made.clone())
    hidden = torch.cat(passed)
    return torch.cat((hidden[:cut], hidden[cut + len(short) :])), hidden[cut : cut + len(short)]
