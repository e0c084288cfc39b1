"""One rank: a model shard and its paged cache, executing step plans one after another.

Knows nothing of processes or of who sends the plans. Every rank gets the same plans; rank 0 alone
samples and answers.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from torch import Tensor

from octavo.scheduler.config import Capacity
from octavo.scheduler.mirror import Mirror, Row
from octavo.scheduler.plan import StepPlan, StepResult, Work, decode_plan, encode
from octavo.scheduler.request import Logprob
from octavo.workers.adapter_files import read_adapters
from octavo.workers.batch import PENDING, Arrays, Batcher, ends_of
from octavo.workers.cache import Layout, available_memory, cpu_budget, given_budget
from octavo.workers.config import WorkerConfig, resolve_dtype, served_length
from octavo.workers.crossing import Gathering
from octavo.workers.flight import FAULT, Chosen, Flight
from octavo.workers.gpu_memory import DIVIDE, SMALLER_CACHE, CudaMeter, Wanted, explained, profile
from octavo.workers.graph_maker import GraphMaker
from octavo.workers.graphs import DecodeGraphs
from octavo.workers.host import host_blocks, host_bytes
from octavo.workers.largest_step import StepSize, largest_plan
from octavo.workers.latest import Latest
from octavo.workers.loader import torch_dtype
from octavo.workers.masks import Masks
from octavo.workers.models.adapters import Adapters, Segment, load_adapters
from octavo.workers.models.model import Model
from octavo.workers.models.opening import Opening
from octavo.workers.narrow import cache_dtype
from octavo.workers.parallel import ALONE, Group, Shard
from octavo.workers.place import place, tiers_on
from octavo.workers.progress import Progress
from octavo.workers.read_model import read_model
from octavo.workers.sampler import Named, Sampled, Sampler, describe_prompt
from octavo.workers.tiers import Tiers, written_blocks
from octavo.workers.upload import Mark, Past, mark, upload

if TYPE_CHECKING:
    from octavo.workers.vocabulary import Vocabulary

MASK_THREADS = 8
LOGIT_ROWS = 128  # rows of prompt logits held at once


class Worker:
    """In this order: `load`, `measure`, `allocate`, then any number of `execute`; `close` ends it.

    The constructor reads config.json and the headers of adapters only. Raises `InvalidRequest`
    naming the flag or file at fault. Rows live between steps; the cache's content outlives them,
    also over a plan with `reset`. On a GPU, it `runs_ahead`: `execute` may be taken apart into
    `begin` and `finish`, as `octavo.workers.ahead` has it.
    """

    def __init__(self, config: WorkerConfig, group: Group = ALONE) -> None:
        self.config = config
        self.group = group
        self.progress = Progress()
        self.model_config = read_model(config.model, config.model_impl)
        self.max_model_len = served_length(self.model_config, config.max_model_len)
        self.device, self.kernels = place(config.device, config.kernels)
        self.dtype = torch_dtype(
            resolve_dtype(config.dtype, self.model_config.dtype, self.device.type)
        )
        self.shard = Shard.of(self.model_config, group.rank, group.size)
        kept = cache_dtype(config, self.dtype, self.kernels, self.device)
        self.layout = Layout.of(self.model_config, self.shard, config.block_size, kept)
        self._adapter_files = read_adapters(
            config.lora_modules or (), self.model_config, config.max_lora_rank
        )
        self._adapters = Adapters(self.device)
        self._mirror = Mirror(config.block_size)
        self.runs_ahead = self.device.type == "cuda"
        self._batcher = Batcher(config.block_size, self.device)
        self._latest = Latest(self.device)
        self._aloft: deque[Flight] = deque()
        self._last_landed = 0.0
        self._inputs_taken: Mark = Past()
        self._graphs: DecodeGraphs | None = None
        self._masks = self._make_masks() if group.rank == 0 else None
        self._sampler = Sampler(self.kernels, self._masks)
        self._model: Model | None = None
        self._host_bytes = 0
        self._cache: Tensor | None = None
        self._tiers: Tiers | None = None
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)

    def load(self) -> None:
        """Reads this rank's share of the weights, and sees how much memory is left beside them.
        Raises `InvalidRequest` where the swap space is more."""
        with self._explained("the weights", f"{DIVIDE}, or make them narrower by --quantization"):
            self._model = Opening(
                config=self.config,
                model=self.model_config,
                shard=self.shard,
                layout=self.layout,
                dtype=self.dtype,
                device=self.device,
                kernels=self.kernels,
                group=self.group,
                max_model_len=self.max_model_len,
            ).open()
            self._adapters = load_adapters(
                *(self._adapter_files, self.model_config, self.shard),
                *(self.dtype, self.device, self.kernels),
            )
        self._host_bytes = host_bytes(
            self.config.swap_space, self.device.type, available_memory(), self.group.size
        )
        if self._masks is not None:
            self._masks.warm_up()

    def measure(self) -> int:
        """Blocks that this rank has room for, the null block included. On a GPU every rank must
        call it, as it runs a step. Raises `InvalidRequest` where one longest request would not
        fit, unless the number was given."""
        config = self.config
        if config.num_blocks_override is not None:
            return config.num_blocks_override
        if config.kv_cache_memory_bytes is not None:
            budget = given_budget(config.kv_cache_memory_bytes)
        elif self.device.type == "cpu":
            budget = cpu_budget(available_memory(), self.group.size)
        else:
            budget = profile(
                CudaMeter(self.device),
                config.gpu_memory_utilization,
                self._largest(),
                self.largest_step,
                self._maker().trial(),
                Wanted(self.layout, self.max_model_len),
                Gathering().bytes(self.layout.block_bytes) if self._host_bytes else 0,
            )
        return budget.num_blocks(self.layout, self.max_model_len)

    def largest_step(self, size: StepSize | None = None) -> None:
        """Runs a step as large as any will be, or of another size, on rows and a cache of its
        own."""
        block_size = self.config.block_size
        adapter = self._adapter_files[-1].name if self._adapter_files else ""
        plan, blocks = largest_plan(
            size or self._largest(), self.max_model_len, block_size, adapter
        )
        mirror = Mirror(block_size)
        mirror.apply(plan)
        cache = self.layout.allocate(blocks, self.device)
        with torch.inference_mode():
            self._run(plan, mirror, Batcher(block_size, self.device), cache)

    def _largest(self) -> StepSize:
        return StepSize(self.config.max_num_batched_tokens, self.config.max_num_seqs)

    def allocate(self, num_blocks: int) -> Capacity:
        """Makes the cache, for which all ranks are given the same number of blocks, and the host
        tier, which may have more or fewer blocks than that of another rank; on a GPU, records the
        graphs, for which all ranks are wanted."""
        block_bytes = self.layout.block_bytes
        with self._explained(f"a KV cache of {num_blocks} blocks and CUDA graphs", SMALLER_CACHE):
            self._cache = self.layout.allocate(num_blocks, self.device, lasting=True)
            self._graphs = self._maker().make(self._cache)
        host = host_blocks(self._host_bytes // block_bytes, block_bytes, self.device)
        self._tiers = tiers_on(self.device)(self._cache, host, self.kernels)
        return Capacity(num_blocks, self.config.block_size, len(host), block_bytes)

    def execute(self, raw: bytes) -> bytes | None:
        """Applies an encoded plan and computes it. Rank 0 returns the encoded result, the others
        None. Raises `OutOfStep` with nothing done where a plan was missed."""
        return self.finish(self.begin(raw))

    def begin(self, raw: bytes) -> Flight:
        """Applies a plan and gives the device its work. Raises `OutOfStep` as `execute` does."""
        assert self._cache is not None and self._tiers is not None, "allocate comes before execute"
        began = time.perf_counter()
        plan = decode_plan(raw)
        if plan.fork:  # a row's tokens are copied with it, and must be there
            self._land_all()
        self._mirror.apply(plan)
        with torch.inference_mode():
            written = written_blocks(plan.work, self._mirror.rows, self.config.block_size)
            self._tiers.before(plan, written)
            result, drawing, chosen = self._run(plan, self._mirror, self._batcher, self._cache)
            self._tiers.after(plan)
        flight = Flight(plan, result, chosen, drawing, mark(self.device), began)
        if chosen is None:
            self._mirror.advance(plan, result.tokens)
        else:
            self._mirror.advance(plan, [PENDING] * len(drawing))
            flight.await_tokens(self._mirror.rows)
        self._aloft.append(flight)
        return flight

    def finish(self, flight: Flight) -> bytes | None:
        """The answer to a step that was begun, which it waits for."""
        assert self._tiers is not None
        while flight.seconds is None:
            self._land_next()
        copied_blocks, copy_seconds = self._tiers.take_copied()
        if self.group.rank != 0:
            return None
        return encode(
            msgspec.structs.replace(
                flight.result,
                compute_seconds=flight.seconds,
                copied_blocks=copied_blocks,
                copy_seconds=copy_seconds,
            )
        )

    def close(self) -> None:
        """Ends the thread of the masks."""
        if self._masks is not None:
            self._masks.close()

    def _land_all(self) -> None:
        while self._aloft:
            self._land_next()

    def _land_next(self) -> None:
        flight = self._aloft.popleft()
        flight.wait()
        now = time.perf_counter()
        took = now - max(flight.began, self._last_landed)
        flight.land(took)
        self._last_landed = now
        self.progress.stepped(took, self.group.exchange.seconds)

    def _run(
        self, plan: StepPlan, mirror: Mirror, batcher: Batcher, cache: Tensor
    ) -> tuple[StepResult, list[int], Chosen | None]:
        """The result as rank 0 knows it; on the others only `tokens` is filled. Then the Works that
        draw, and their tokens, where these are not in the result but on the device."""
        batcher.replace(plan.replace, mirror.rows)
        if not plan.work:
            return StepResult(step=plan.step, tokens=[]), [], None
        assert self._model is not None, "load comes before execute"
        drawing, searching = _choosers(plan.work, mirror.rows)
        self._sampler.begin([plan.work[i].row for i in drawing], mirror.rows)
        segments = self._adapters.segments(plan.work, mirror.rows)
        step, ends = batcher.arrays(plan.work, mirror.rows), ends_of(plan.work)
        choosing = [ends[i] - 1 for i in drawing + searching]
        scored = any(mirror.rows[w.row].sampling.prompt_logprobs is not None for w in plan.work)
        hidden = self._forward(step, batcher, cache, segments, None if scored else choosing)
        prompt_logprobs = self._describe_prompts(plan.work, mirror.rows, ends, hidden)
        logits = self._logits(hidden[choosing] if scored else hidden)
        count = len(drawing)
        sampled, chosen = self._sample(
            None if logits is None else logits[:count],
            [plan.work[i].row for i in drawing],
            mirror.rows,
        )
        named = self._search(
            None if logits is None else logits[count:],
            [plan.work[i].row for i in searching],
            mirror.rows,
        )
        faults = [drawing[i] for i in sampled.faults] + [searching[i] for i in named.faults]
        strayed = {drawing[i]: why for i, why in sampled.strayed.items()}
        result = StepResult(
            step=plan.step,
            tokens=sampled.tokens,
            logprobs=sampled.logprobs,
            prompt_logprobs=prompt_logprobs,
            errors=dict.fromkeys(sorted(faults), FAULT) | strayed,
            candidates=named.candidates,
        )
        return result, drawing, chosen

    def _forward(
        self,
        step: Arrays,
        batcher: Batcher,
        cache: Tensor,
        segments: tuple[Segment, ...],
        at: list[int] | None,
    ) -> Tensor:
        """The last hidden states of a step's tokens, or of those `at` some places, from a graph
        where there is one."""
        assert self._model is not None
        graphs = self._graphs if cache is self._cache and not segments else None
        wanted = None
        if at is not None and at != list(range(len(step.ids))):
            (wanted,) = upload([np.array(at, np.int64)], self.device)
        self._inputs_taken.wait()  # the kernels may use their own room in host memory again
        if graphs is not None and (size := graphs.size_for(step)) is not None:
            graphs.prepare(step, size, self._latest)
            self._inputs_taken = mark(self.device)
            self.progress.tick()
            hidden = graphs.play(step, size)
            return hidden if wanted is None else hidden.index_select(0, wanted)
        given = batcher.place(step)
        self._latest.fill(given.ids, step)
        self.kernels.begin_step(given.batch)
        self._inputs_taken = mark(self.device)
        return self._model.forward(
            *(given.ids, given.positions, cache, given.batch),
            *(self.progress.tick, segments, wanted),
        )

    def _maker(self) -> GraphMaker:
        assert self._model is not None, "load comes first"
        return GraphMaker(self.config, self.max_model_len, self.layout, self._model, self.device)

    def _explained(self, what: str, advice: str) -> AbstractContextManager[None]:
        """Has a GPU that is too small named."""
        if self.device.type == "cpu":
            return nullcontext()
        return explained(what, CudaMeter(self.device), advice)

    def _make_masks(self) -> Masks:
        """Beside a GPU the host's cores have little else to do; on a CPU they are the model's."""
        folder, size = self.config.model, self.model_config.vocab_size
        threads = 1 if self.device.type == "cpu" else MASK_THREADS

        def load() -> Vocabulary:
            from octavo.workers.vocabulary import Vocabulary

            return Vocabulary.of_directory(folder, size)

        return Masks(load, threads)

    def _logits(self, hidden: Tensor) -> Tensor | None:
        """Of some tokens on rank 0; None on others, which must take part."""
        assert self._model is not None
        return self._model.logits(hidden) if len(hidden) else None

    def _sample(
        self, logits: Tensor | None, numbers: list[int], rows: dict[int, Row]
    ) -> tuple[Sampled, Chosen | None]:
        """The next tokens of rows, which all ranks come to know; on the device and on their way, if
        nobody needs to see them first."""
        nothing = Sampled([], [], [])
        if not numbers:
            return nothing, None
        if logits is None:
            ids = torch.empty(len(numbers), dtype=torch.int64, device=self.device)
            self.group.broadcast(ids)
            if not self.runs_ahead:
                return Sampled(ids.tolist(), [], []), None
            self._latest.store(numbers, ids)
            return nothing, Chosen(ids, None)
        # Rows of which the host sees each token at once have none that is on its way.
        if self.runs_ahead and (launched := self._sampler.launch(logits, numbers, rows)):
            ids, unfit = launched
            self.group.broadcast(ids)
            self._latest.store(numbers, ids)
            return nothing, Chosen(ids, unfit)
        sampled = self._sampler.sample(logits, numbers, rows)
        if self.group.size > 1:
            self.group.broadcast(torch.tensor(sampled.tokens, device=self.device))
        return sampled, None

    def _search(self, logits: Tensor | None, numbers: list[int], rows: dict[int, Row]) -> Named:
        """The candidates of beams. The other ranks need none: the scheduler chooses, and tells all
        ranks by an `Append`."""
        if not numbers or logits is None:
            return Named([], [])
        return self._sampler.search(logits.float(), numbers, rows)

    def _describe_prompts(
        self, work: list[Work], rows: dict[int, Row], ends: list[int], hidden: Tensor
    ) -> dict[int, list[Logprob]]:
        """Entries for each Work whose row asked, by its index. Every rank must take part."""
        assert self._model is not None
        found: dict[int, list[Logprob]] = {}
        for index, item in enumerate(work):
            row = rows[item.row]
            count = min(item.start + item.count, row.prompt_len - 1) - item.start
            if row.sampling.prompt_logprobs is None or count <= 0:
                continue
            entries = found.setdefault(index, [])
            first = ends[index] - item.count
            for done in range(0, count, LOGIT_ROWS):
                upto = min(done + LOGIT_ROWS, count)
                logits = self._model.logits(hidden[first + done : first + upto])
                if logits is not None:
                    entries += describe_prompt(logits.float(), row, item.start + done)
        return found if self.group.rank == 0 else {}


def _choosers(work: list[Work], rows: dict[int, Row]) -> tuple[list[int], list[int]]:
    """Indices of each Work that takes its next token, and of each that names candidates."""
    drawing: list[int] = []
    searching: list[int] = []
    for index, item in enumerate(work):
        if item.sample:
            beam = rows[item.row].sampling.beam_width is not None
            (searching if beam else drawing).append(index)
    return drawing, searching
