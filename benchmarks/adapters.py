"""What LoRA adapters cost a decode step.

    python benchmarks/adapters.py [--rows 1 4 16] [--rank 16] [--context 256] [--rounds 3]

Two real workers in this process, one without adapters and one with four random ones of all seven
projections, compute the same steps turn by turn; times are medians over rounds, and so are ratios,
each of one round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from driver import Driver, embedded_model, make_request, random_tokens, say
from machine import describe, probe, row
from msgspec.structs import replace
from safetensors.torch import save_file

from octavo.scheduler.config import SchedulerConfig
from octavo.workers.adapter_files import CONFIG_FILE, WEIGHTS_FILE, a_of, b_of
from octavo.workers.config import WorkerConfig
from octavo.workers.model_config import ModelConfig
from octavo.workers.worker import Worker

NAMES = ("a", "b", "c", "d")
STEPS, WARM_UP = 40, 4
BLOCK = 16
CASES: dict[str, Sequence[str]] = {  # the adapters of rows, by turns
    "adapters loaded, no row has one": ("",),
    "all rows have the same": ("a",),
    "every other row has it": ("", "a"),
    "four, by turns": NAMES,
}


def make_adapter(folder: Path, model: ModelConfig, rank: int) -> None:
    """Random weights, small enough to leave the model's sense."""
    heads, kv_heads = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    hidden, inner = model.hidden_size, model.intermediate_size
    sizes = {"self_attn.q_proj": (heads, hidden), "self_attn.o_proj": (hidden, heads)}
    sizes |= dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (kv_heads, hidden))
    sizes |= dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (inner, hidden))
    sizes["mlp.down_proj"] = (hidden, inner)
    tensors = {}
    for layer in range(model.num_layers):
        for name, (outputs, inputs) in sizes.items():
            module = f"model.layers.{layer}.{name}"
            tensors[a_of(module)] = 0.01 * torch.randn(rank, inputs)
            tensors[b_of(module)] = 0.01 * torch.randn(outputs, rank)
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS_FILE)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    (folder / CONFIG_FILE).write_text(json.dumps(settings))


class Side:
    def __init__(self, args: argparse.Namespace, model: Path, modules: list[str]) -> None:
        length = args.context + STEPS + WARM_UP + 2 * BLOCK
        blocks = max(args.rows) * -(-length // BLOCK) + 64
        shape: dict[str, Any] = {
            "block_size": BLOCK,
            "max_num_seqs": max(args.rows),
            "max_num_batched_tokens": 256,
        }
        self.worker = Worker(
            WorkerConfig(
                str(model),
                dtype="bfloat16",
                num_blocks_override=blocks,
                swap_space=0,
                num_threads=args.threads,
                lora_modules=modules,
                max_lora_rank=args.rank,
                **shape,
            )
        )
        limits = SchedulerConfig(length, adapters=NAMES if modules else (), **shape)
        self.driver = Driver(self.worker, limits)
        self._asked = 0

    def step_seconds(self, rows: int, context: int, adapters: Sequence[str]) -> float:
        """The worker's median, with `rows` sequences that decode."""
        self._asked += 1
        for i in range(rows):
            name = f"{self._asked}/{i}"
            request = make_request(name, random_tokens(context, name), STEPS + WARM_UP + BLOCK)
            self.driver.add([replace(request, adapter=adapters[i % len(adapters)])])
        while self.driver.scheduler.num_waiting or self.driver.scheduler.num_running < rows:
            self.driver.step()
        found: list[float] = []
        execute = self.worker.execute

        def timed(raw: bytes) -> bytes | None:
            start = time.perf_counter()
            answer = execute(raw)
            found.append(time.perf_counter() - start)
            return answer

        self.worker.execute = timed  # type: ignore[method-assign]
        for _ in range(WARM_UP + STEPS):
            self.driver.step()
        self.worker.execute = execute  # type: ignore[method-assign]
        self.driver.run()
        return statistics.median(found[WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    model = embedded_model()
    with tempfile.TemporaryDirectory() as folder:
        modules = []
        for name in NAMES:
            make_adapter(Path(folder, name), ModelConfig.from_directory(model), args.rank)
            modules.append(f"{name}={Path(folder, name)}")
        say("loading the model twice")
        without, with_them = Side(args, model, []), Side(args, model, modules)
        print(describe())
        print(row("sequences", "ms without", *CASES, "probe"))
        print(row(*["---"] * (len(CASES) + 3)))
        for rows in args.rows:
            rounds = []
            for _ in range(args.rounds):
                plain = without.step_seconds(rows, args.context, ("",))
                each = [with_them.step_seconds(rows, args.context, a) for a in CASES.values()]
                rounds.append([plain, *[seconds / plain for seconds in each]])
            plain, *ratios = map(statistics.median, zip(*rounds, strict=True))
            cells = [f"{ratio:.2f}" for ratio in ratios]
            print(row(rows, f"{plain * 1e3:.1f}", *cells, probe(args.threads)), flush=True)


if __name__ == "__main__":
    main()
