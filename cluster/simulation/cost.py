"""How long a step takes: a roofline over what its plan computes and reads (Williams et al. 2009).

Knows nothing of how plans come about. Matrix products read all weights once a step and take part
in arithmetic by its tokens; attention reads the keys and values of every sequence in it; whatever
of both is longer counts, with a fixed cost on top. Copies between the tiers go by the host's link:
those that a step waits for come before it, those written behind go on beside it.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.cluster.simulation.hardware import Hardware
from octavo.cluster.simulation.models import WEIGHT_BYTES, ModelSizes
from octavo.scheduler.plan import StepPlan, Work


class Load(NamedTuple):
    """What a step does, in sums over its sequences. Those that decode read `decoded` tokens of keys
    and values, `repeated` of them in blocks that others of them read too; chunks of several tokens
    read `chunk_reads`, and multiply `pairs` of a query and a key."""

    rows: int
    tokens: int
    chosen: int
    decoded: int
    chunk_reads: int
    pairs: float
    repeated: int = 0


def load_of(work: list[Work], repeated: int = 0) -> Load:
    """`repeated` is how many tokens the sequences of the step hold in blocks that others of them
    hold too, each but for the first."""
    tokens = chosen = decoded = chunk_reads = 0
    pairs = 0.0
    for each in work:
        start, count = each.start, each.count
        tokens += count
        chosen += each.sample
        if count <= 1:
            decoded += start + count
        else:
            chunk_reads += start + count
            pairs += count * (start + (count + 1) / 2)
    return Load(len(work), tokens, chosen, decoded, chunk_reads, pairs, min(repeated, decoded))


class Cost:
    """Of `model` on `ranks` devices that share it, in blocks of `block_size` tokens.

    `paged` is false where each sequence's keys and values lie in one piece. `copies` is how many
    pieces one block is copied in between the tiers: 1 where it is one chunk over all layers.
    `grain` is how many tokens each token of a plan stands for, and so how many steps each step: a
    plan is then costed as that many steps alike.
    """

    def __init__(
        self,
        hardware: Hardware,
        model: ModelSizes,
        ranks: int,
        block_size: int,
        *,
        paged: bool = True,
        copies: int = 1,
        grain: int = 1,
    ) -> None:
        self._hardware = hardware
        self._grain = grain
        self._block_size = block_size
        self._copies = copies
        self._ranks = ranks
        rate = hardware.flops * hardware.flops_share
        reading = hardware.bandwidth * hardware.bandwidth_share
        self._read_layers = WEIGHT_BYTES * model.layer_parameters / ranks / reading
        self._read_head = WEIGHT_BYTES * model.head_parameters / ranks / reading
        self._token = 2 * model.layer_parameters / ranks / rate
        self._choice = 2 * model.head_parameters / ranks / rate
        self._cached = model.token_bytes / ranks / self._attention_rate(model, paged)
        pairs = hardware.flops * hardware.attention_flops_share
        self._pair = 4 * model.layers * model.heads * model.head_dim / ranks / pairs
        self._fixed = hardware.step_seconds + model.layers * hardware.layer_seconds
        self._shared = 0.0
        if ranks > 1:  # two all-reduces a layer; in a ring each rank sends (n - 1) / n twice
            self._fixed += 2 * model.layers * hardware.sync_seconds
            sent = 2 * (ranks - 1) / ranks * WEIGHT_BYTES * model.hidden
            self._shared = 2 * model.layers * sent / hardware.link
        self._copy_on_write = 2 * model.token_bytes * block_size / ranks / reading
        self.block_bytes = model.token_bytes * block_size // ranks
        self.asks_for_sharing = hardware.repeated_read_share < 1.0

    def _attention_rate(self, model: ModelSizes, paged: bool) -> float:
        hardware = self._hardware
        rate = hardware.bandwidth * hardware.attention_bandwidth_share
        cell = WEIGHT_BYTES * self._block_size * model.head_dim
        return rate * cell / (cell + hardware.cell_bytes) if paged else rate

    def compute(self, work: list[Work], repeated: int = 0) -> float:
        """Seconds to compute a plan's work; `repeated` is that of `load_of`."""
        return self.seconds(load_of(work, repeated))

    def seconds(self, load: Load) -> float:
        """Seconds to compute so much."""
        hardware, grain = self._hardware, self._grain
        total = self._both(self._read_layers, load.tokens * self._token)
        if load.chosen:
            total += self._both(self._read_head, load.chosen * self._choice)
        spared = load.repeated * (1 - hardware.repeated_read_share)
        total += (load.decoded - spared) * grain * self._cached
        if load.pairs:
            reading = load.chunk_reads * grain * self._cached
            total += self._both(reading, load.pairs * grain * self._pair)
        total += load.tokens * self._shared + self._fixed + load.rows * hardware.row_seconds
        return grain * total

    def _both(self, reading: float, arithmetic: float) -> float:
        longer, shorter = max(reading, arithmetic), min(reading, arithmetic)
        return longer + (1 - self._hardware.overlap) * shorter

    def prefill(self, tokens: int, budget: int) -> float:
        """Seconds to compute so many tokens of one sequence, alone, `budget` of them a step."""
        return sum(
            self.compute([Work(0, start, min(budget, tokens - start), True)])
            for start in range(0, tokens, budget)
        )

    def copy(self, blocks: int) -> float:
        """Seconds to copy so many blocks across, each rank its own heads of them."""
        hardware = self._hardware
        return blocks * (
            self._copies * hardware.copy_seconds + self.block_bytes / hardware.host_link
        )

    def step(self, plan: StepPlan, repeated: int = 0) -> tuple[float, float]:
        """Seconds that the step takes, and those in which its blocks were copied between the
        tiers, for part of which it computed too. `repeated` is that of `load_of`: it changes
        something where the cost `asks_for_sharing`."""
        computing = self.compute(plan.work, repeated) + len(plan.copy) * self._copy_on_write
        waited = self.copy(len(plan.swap_out) + len(plan.swap_in))
        behind = self.copy(len(plan.store))
        return waited + max(computing, behind), waited + behind
