"""One rank: a model shard and its paged cache, executing step plans one after another.

Knows nothing of processes or of who sends the plans. Every rank gets the same plans; rank 0 alone
samples and answers.
"""

from __future__ import annotations

import logging
import time

import torch
from torch import Tensor

from octavo.kernels.base import Kernels
from octavo.kernels.select import select
from octavo.scheduler.config import Capacity
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.mirror import Mirror, Row
from octavo.scheduler.plan import Add, StepPlan, StepResult, Work, decode_plan, encode
from octavo.scheduler.request import Logprob
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.batch import Batcher
from octavo.workers.cache import (
    Layout,
    available_memory,
    cpu_budget,
    given_budget,
    profile_gpu,
)
from octavo.workers.config import WorkerConfig, resolve_dtype, served_length
from octavo.workers.copy_stream import CopyStream
from octavo.workers.copy_thread import CopyThread
from octavo.workers.host import host_blocks, host_bytes
from octavo.workers.loader import Checkpoint, torch_dtype
from octavo.workers.masks import Masks
from octavo.workers.model_config import ModelConfig
from octavo.workers.models.llama import Llama
from octavo.workers.models.weights import load_weights
from octavo.workers.parallel import ALONE, Group, Shard
from octavo.workers.progress import Progress
from octavo.workers.sampler import Named, Sampled, Sampler, describe_prompt
from octavo.workers.tiers import Tiers, written_blocks
from octavo.workers.vocabulary import Vocabulary

log = logging.getLogger("octavo.workers")

MASK_THREADS = 8
LOGIT_ROWS = 128  # rows of prompt logits held at once
FAULT = "the model gave no finite logits for this request (NaN or infinity)"


class Worker:
    """In this order: `load`, `measure`, `allocate`, then any number of `execute`; `close` ends it.

    The constructor reads config.json only. Raises `InvalidRequest` naming the flag or file at
    fault. Rows live between steps; the cache's content outlives them, also over a plan with
    `reset`.
    """

    def __init__(self, config: WorkerConfig, group: Group = ALONE) -> None:
        self.config = config
        self.group = group
        self.progress = Progress()
        self.model_config = ModelConfig.from_directory(config.model)
        self.max_model_len = served_length(self.model_config, config.max_model_len)
        self.device, self.kernels = _place(config.device, config.kernels)
        self.dtype = torch_dtype(
            resolve_dtype(config.dtype, self.model_config.dtype, self.device.type)
        )
        self.shard = Shard.of(self.model_config, group.rank, group.size)
        self.layout = Layout.of(self.model_config, self.shard, config.block_size, self.dtype)
        self._mirror = Mirror(config.block_size)
        self._batcher = Batcher(config.block_size, self.device)
        self._masks = self._make_masks() if group.rank == 0 else None
        self._sampler = Sampler(self.kernels, self._masks)
        self._model: Llama | None = None
        self._host_bytes = 0
        self._cache: Tensor | None = None
        self._tiers: Tiers | None = None
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)

    def load(self) -> None:
        """Reads this rank's share of the weights, and sees how much memory is left beside them.
        Raises `InvalidRequest` where the swap space is more."""
        with Checkpoint(self.config.model) as checkpoint:
            weights = load_weights(
                self.model_config,
                self.shard,
                checkpoint,
                self.dtype,
                self.device,
                self.kernels,
                self.config.quantization,
            )
        self._model = Llama(
            self.model_config, self.shard, weights, self.kernels, self.group, self.max_model_len
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
            budget = profile_gpu(self.device, config.gpu_memory_utilization, self.largest_step)
        return budget.num_blocks(self.layout, self.max_model_len)

    def largest_step(self) -> None:
        """Runs a step as large as any will be, on rows and a cache of its own: all the tokens of a
        step, in as many rows as may sample at once, all asking for everything."""
        budget, size = self.config.max_num_batched_tokens, self.config.block_size
        count = min(self.config.max_num_seqs, budget)
        share = min(-(-budget // count), self.max_model_len)
        blocks = list(range(1, -(-share // size) + 1))  # all rows may write the same ones
        sampling = SamplingParams(top_p=0.9, seed=0, logprobs=1, prompt_logprobs=1)
        add = [Add(row, [0] * share, share, blocks, 0, sampling) for row in range(count)]
        work = [Work(row, 0, share, True) for row in range(count)]
        plan = StepPlan(step=0, work=work, add=add, reset=True)
        mirror = Mirror(size)
        mirror.apply(plan)
        cache = self.layout.allocate(len(blocks) + 1, self.device)
        with torch.inference_mode():
            self._run(plan, mirror, Batcher(size, self.device), cache)

    def allocate(self, num_blocks: int) -> Capacity:
        """Makes the cache, for which all ranks are given the same number of blocks, and the host
        tier, which may have more or fewer blocks than that of another rank."""
        block_bytes = self.layout.block_bytes
        self._cache = self.layout.allocate(num_blocks, self.device)
        host = host_blocks(self._host_bytes // block_bytes, block_bytes, self.device)
        self._tiers = tiers_on(self.device)(self._cache, host, self.kernels)
        return Capacity(num_blocks, self.config.block_size, len(host), block_bytes)

    def execute(self, raw: bytes) -> bytes | None:
        """Applies an encoded plan and computes it. Rank 0 returns the encoded result, the others
        None. Raises `OutOfStep` with nothing done where a plan was missed."""
        assert self._cache is not None and self._tiers is not None, "allocate comes before execute"
        began = time.perf_counter()
        plan = decode_plan(raw)
        self._mirror.apply(plan)
        with torch.inference_mode():
            written = written_blocks(plan.work, self._mirror.rows, self.config.block_size)
            self._tiers.before(plan, written)
            result = self._run(plan, self._mirror, self._batcher, self._cache)
            self._tiers.after(plan)
        self._mirror.advance(plan, result.tokens)
        copied_blocks, copy_seconds = self._tiers.take_copied()
        if self.group.rank != 0:
            return None
        seconds = time.perf_counter() - began
        return encode(
            StepResult(
                step=plan.step,
                tokens=result.tokens,
                logprobs=result.logprobs,
                prompt_logprobs=result.prompt_logprobs,
                errors=result.errors,
                compute_seconds=seconds,
                candidates=result.candidates,
                copied_blocks=copied_blocks,
                copy_seconds=copy_seconds,
            )
        )

    def close(self) -> None:
        """Ends the thread of the masks."""
        if self._masks is not None:
            self._masks.close()

    def _run(self, plan: StepPlan, mirror: Mirror, batcher: Batcher, cache: Tensor) -> StepResult:
        """The result as rank 0 knows it; on the others only `tokens` is filled."""
        batcher.replace(plan.replace, mirror.rows)
        if not plan.work:
            return StepResult(step=plan.step, tokens=[])
        assert self._model is not None, "load comes before execute"
        drawing, searching = _choosers(plan.work, mirror.rows)
        self._sampler.begin([plan.work[i].row for i in drawing], mirror.rows)
        step = batcher.build(plan.work, mirror.rows)
        hidden = self._model.forward(
            step.ids, step.positions, cache, step.batch, self.progress.tick
        )
        ends = _ends(plan.work)
        prompt_logprobs = self._describe_prompts(plan.work, mirror.rows, ends, hidden)
        logits = self._logits(hidden, [ends[i] - 1 for i in drawing + searching])
        count = len(drawing)
        sampled = self._sample(
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
        return StepResult(
            step=plan.step,
            tokens=sampled.tokens,
            logprobs=sampled.logprobs,
            prompt_logprobs=prompt_logprobs,
            errors=dict.fromkeys(sorted(faults), FAULT) | strayed,
            candidates=named.candidates,
        )

    def _make_masks(self) -> Masks:
        """Beside a GPU the host's cores have little else to do; on a CPU they are the model's."""
        folder, size = self.config.model, self.model_config.vocab_size
        threads = 1 if self.device.type == "cpu" else MASK_THREADS
        return Masks(lambda: Vocabulary.of_directory(folder, size), threads)

    def _logits(self, hidden: Tensor, at: list[int]) -> Tensor | None:
        """Logits of tokens `at` of the batch on rank 0; None on others, which must take part."""
        if not at:
            return None
        assert self._model is not None
        return self._model.logits(hidden[at])

    def _sample(self, logits: Tensor | None, numbers: list[int], rows: dict[int, Row]) -> Sampled:
        """The next tokens of rows; only these are known to all ranks."""
        if not numbers:
            return Sampled([], [], [])
        if logits is None:
            ids = torch.empty(len(numbers), dtype=torch.int64, device=self.device)
            self.group.broadcast(ids)
            return Sampled(ids.tolist(), [], [])
        sampled = self._sampler.sample(logits, numbers, rows)
        if self.group.size > 1:
            self.group.broadcast(torch.tensor(sampled.tokens, device=self.device))
        return sampled

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


def _ends(work: list[Work]) -> list[int]:
    """Where each Work's tokens end in the batch."""
    ends, total = [], 0
    for item in work:
        total += item.count
        ends.append(total)
    return ends


def tiers_on(device: torch.device) -> type[Tiers]:
    """What carries blocks between a device and the host."""
    return CopyThread if device.type == "cpu" else CopyStream


def _place(name: str, kernels: str) -> tuple[torch.device, Kernels]:
    """The device to compute on, and its kernels. `auto` is a GPU where there is one that has
    kernels, else the CPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest(
            "device",
            "device cuda was asked for, but torch finds no GPU; use --device cpu, or install a "
            "torch that is built for CUDA",
        )
    if name == "auto" and torch.cuda.is_available():
        try:
            return torch.device("cuda"), select(torch.device("cuda"), kernels)
        except ValueError as error:
            log.warning("computing on the CPU: %s", error)
    device = torch.device("cuda" if name == "cuda" else "cpu")
    try:
        return device, select(device, kernels)
    except ValueError as error:
        raise InvalidRequest("kernels", str(error)) from None
