"""What int8 weights bring and what they cost: time of steps, memory, and how far answers move.

    python benchmarks/quantized.py [--rows 1 4 16 64] [--context 256] [--prompt 512] [--rounds 5]
                                   [--model DIRECTORY] [--no-accuracy]
    OCTAVO_KERNELS=torch python benchmarks/quantized.py --fp8

Two real workers in this process, one as the checkpoint is (bfloat16) and one with int8 weights,
compute the same steps turn by turn; times are medians over rounds, and so are ratios, each of one
round. Accuracy: the mean negative log-likelihood of a fixed text and the likeliest token at each of
its places, then greedy answers; float32 beside bfloat16 shows what rounding alone does to them.
int8 may cost LOSS nats a token of the text. With --fp8 the answers alone are compared, of FP8
weights and of an FP8 cache: on a CPU by plain torch, as only GPUs have kernels for them.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from driver import Driver, embedded_model, make_request, random_tokens, say
from machine import describe, probe, row
from step import STEPS, WHOLE, decode

from octavo import LLM, SamplingParams
from octavo.kernels.base import Packed
from octavo.scheduler.config import SchedulerConfig
from octavo.workers.config import WorkerConfig
from octavo.workers.worker import Worker

BLOCK = 16
SIDES = {"bfloat16": None, "int8": "int8"}
READERS = {  # the first is what the others are compared with
    "bfloat16": {"dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}
NARROW_READERS = {
    "bfloat16": {"dtype": "bfloat16"},
    "fp8": {"dtype": "bfloat16", "quantization": "fp8"},
    "fp8 cache": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
}
LOSS = 0.02
ANSWER = 64  # tokens
PROMPTS = [
    "The best way to learn a new language is",
    "Rain had fallen for three days when the letter came.",
    "To plant a small vegetable garden, start by",
    "The moon pulls on the sea, and so",
    "A recipe for onion soup:\n",
    "Dear neighbour,\n\nI would like to",
    "Ships used to find their way by",
    "Here is a short list of things to pack for a walk in the hills:\n1.",
    "The difference between weather and climate is",
    "def mean(values):\n    ",
    "When the old bridge was closed, the town",
    "Bread rises because",
    "Explain to a child why the sky is blue:",
    "In the year 1900, most people in the country",
    "The first thing a good teacher does is",
    "A clock that runs slow",
]
TEXT = """\
The ferry to the island leaves twice a day, once before breakfast and once in the late afternoon.
Most people who take the morning boat work in the boatyard or at the school; those who come
back in the evening have been shopping on the mainland. In winter the crossing can be rough,
and there are weeks when no boat sails at all. The islanders are used to it. They keep flour,
dried beans, lamp oil and a few good books in the house, and they do not worry much about
the date.

Anna moved there in the spring because she wanted to paint. She had rented a low stone house near
the harbour with a garden that nobody had looked after for years. On the first day she opened
every window, swept the floors and carried a broken table out into the yard. Her neighbour,
a retired fisherman called Peter, watched her over the wall for a while. Then he went away
and came back with a hammer, a handful of nails and a loaf of bread that was still warm. He
mended the table without saying a word, and they ate the bread with butter and salt.

Painting turned out to be harder than she had expected. The light changed all the time. In the
morning the water was grey and almost white along the rocks, by noon it was a deep green, and
in the evening it looked like copper. If she mixed a colour slowly, it was already wrong when
she put it on the canvas. After a month she stopped trying to catch one moment. Instead she
made small, quick sketches with a note of the hour on the back, twenty or thirty in a day,
and only in the evening did she choose one of them and paint it again from memory, larger
and with more care.

Water behaves in ways that are easy to see and hard to explain. A wave that comes in from
the open sea carries energy, but very little water moves forward with it; a gull that floats
on the surface goes up and down and stays nearly where it was. Only close to the shore,
where the bottom rises, does the wave grow steep and fall over itself. The depth at which
this happens depends on the height of the wave. As a rule of thumb, a wave breaks where the
water is about one and a third times as deep as the wave is high.

Peter knew nothing of such rules, yet he could tell from the sound at night whether a boat
would be able to leave in the morning. When Anna asked him how he did it, he thought about
the question for a long time. Then he said that it was like knowing who is on the stairs. You
do not count the steps.  You have heard them so often that you know, and if one day you are
mistaken, it is because somebody is ill or carries something heavy.

By the end of the summer she had filled eleven boxes with sketches. She sent three paintings
to a gallery in the city and sold one of them, which paid for the winter's coal. The other
two came back with a polite letter. She hung them in the kitchen, where the steam from the
kettle would surely ruin them in a few years, and began again.
"""


@dataclass(frozen=True, slots=True)
class Side:
    worker: Worker
    driver: Driver

    def step_seconds(self, rows: int, context: int, name: str) -> float:
        steps = decode(self.driver, self.worker, rows, context, False)
        return statistics.median(step[WHOLE] for step in steps)

    def prompt_seconds(self, tokens: int, name: str) -> float:
        self.driver.add([make_request(name, random_tokens(tokens, name), 1)])
        return self.driver.run()

    def weight_bytes(self) -> tuple[int, int]:
        """Of the layers' products, and of the embedding and the head."""
        model = self.worker._model
        assert model is not None
        weights = model.weights
        products = sum(
            _bytes(linear.weight)
            for layer in weights.layers
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )
        return products, weights.embedding.nbytes + _bytes(weights.head)


def _bytes(weight: Packed) -> int:
    parts = (weight.plain, weight.panels, weight.scales)
    return sum(part.nbytes for part in parts if part is not None)


def open_side(args: argparse.Namespace, quantization: str | None) -> Side:
    length = args.context + 4 * STEPS + BLOCK
    tokens = max(args.prompt, 256)
    worker = Worker(
        WorkerConfig(
            str(args.model),
            dtype="bfloat16",
            block_size=BLOCK,
            num_blocks_override=(max(args.rows) * length + tokens) // BLOCK + 64,
            max_num_batched_tokens=tokens,
            max_num_seqs=max(args.rows),
            swap_space=0,
            num_threads=args.threads,
            quantization=quantization,
        )
    )
    limits = SchedulerConfig(
        max(length, tokens + 8),
        block_size=BLOCK,
        max_num_batched_tokens=tokens,
        max_num_seqs=max(args.rows),
        enable_prefix_caching=False,
    )
    return Side(worker, Driver(worker, limits))


def compare_speed(args: argparse.Namespace) -> None:
    sides = {name: open_side(args, quantization) for name, quantization in SIDES.items()}
    print(row("step", *(f"{name}, ms" for name in sides), "quicker", "least to most", "probe"))
    print(row(*["---"] * 6))
    work = [(f"decode, {rows} rows", rows) for rows in args.rows]
    for label, rows in [*work, (f"prompt of {args.prompt}", 0)]:
        say(label)
        speed = probe(args.threads)
        rounds = []
        for turn in range(args.rounds):
            name = f"{label}/{turn}"
            rounds.append(
                [
                    side.step_seconds(rows, args.context, name)
                    if rows
                    else side.prompt_seconds(args.prompt, name)
                    for side in sides.values()
                ]
            )
        ratios = sorted(plain / quantized for plain, quantized in rounds)
        medians = [f"{statistics.median(side) * 1e3:.2f}" for side in zip(*rounds, strict=True)]
        spread = f"{ratios[0]:.2f} - {ratios[-1]:.2f}"
        print(row(label, *medians, f"{statistics.median(ratios):.2f} x", spread, speed), flush=True)
    print("\n" + row("weights, MB", "layers' products", "embedding and head"))
    print(row(*["---"] * 3))
    for name, side in sides.items():
        print(row(name, *(f"{size / 1e6:.0f}" for size in side.weight_bytes())))


def read(llm: LLM, text: list[int]) -> tuple[float, list[int]]:
    """Mean negative log-likelihood of `text`, and the likeliest token at each place."""
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    (output,) = llm.generate([text], asked)
    total, likeliest = 0.0, []
    for token, entry in zip(text[1:], (output.prompt_logprobs or [])[1:], strict=True):
        assert entry is not None
        total -= entry[token].logprob
        likeliest.append(next(token for token, known in entry.items() if known.rank == 1))
    return total / len(likeliest), likeliest


def compare_answers(args: argparse.Namespace, readers: dict[str, dict[str, str]]) -> None:
    asked = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    losses, likeliest, answers = [], [], []
    for name, settings in readers.items():
        say(f"answers in {name}")
        with LLM(args.model, max_model_len=1024, num_threads=args.threads, **settings) as llm:
            loss, found = read(llm, llm.tokenizer.encode(TEXT))
            outputs = llm.generate(PROMPTS, asked, use_tqdm=False)
        losses.append(loss)
        likeliest.append(found)
        answers.append([one.outputs[0].token_ids for one in outputs])
    print(
        f"\nA text of {len(likeliest[0]) + 1} tokens, and {len(PROMPTS)} greedy answers of "
        f"{ANSWER}, beside those in bfloat16:\n"
    )
    heads = ["weights", "nats a token", "beside", "same likeliest token", "same answers"]
    print(row(*heads, "first difference at token, median"))
    print(row(*["---"] * 6))
    for index, name in enumerate(readers):
        places = zip(likeliest[0], likeliest[index], strict=True)
        agreed = statistics.mean(a == b for a, b in places)
        same = [_common(a, b) for a, b in zip(answers[0], answers[index], strict=True)]
        rise = losses[index] - losses[0]
        whole, middle = sum(n == ANSWER for n in same), statistics.median(same)
        print(
            row(name, f"{losses[index]:.4f}", f"{rise:+.4f}", f"{agreed:.1%}", whole, f"{middle:g}")
        )
    if "int8" in readers and (rise := losses[-1] - losses[0]) > LOSS:
        raise SystemExit(f"int8 costs {rise:.4f} nats a token, more than {LOSS}")


def _common(first: list[int], second: list[int]) -> int:
    """Tokens before the first difference."""
    pairs = enumerate(zip(first, second, strict=True))
    return next((place for place, (a, b) in pairs if a != b), len(first))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a directory; default: the embedded model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=512, help="tokens to prefill in one step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--accuracy", action=argparse.BooleanOptionalAction, default=True, help="default: on"
    )
    parser.add_argument("--fp8", action="store_true", help="compare the answers of FP8 alone")
    args = parser.parse_args()
    args.model = args.model or embedded_model()
    print(f"{describe()}; {args.threads} threads\n")
    if args.fp8:
        return compare_answers(args, NARROW_READERS)
    with torch.inference_mode():
        compare_speed(args)
    if args.accuracy:
        compare_answers(args, READERS)


if __name__ == "__main__":
    main()
