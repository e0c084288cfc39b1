"""What the scheduler counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start; tokens unless said otherwise."""

    preemptions: int = 0  # requests
    preemptions_swap: int = 0  # of them, those whose content was kept on the host
    swap_fallbacks: int = 0  # requests that were to be swapped, and for which the host had no room
    prefix_queries: int = 0
    prefix_hits: int = 0
    host_prefix_hits: int = 0  # of them, those that came from the host
    prompt_tokens: int = 0  # of requests whose prompt was processed, hits included
    prompt_computed: int = 0  # recomputed ones after a preemption included
    computed: int = 0
    rejections: int = 0  # requests
    resumed: int = 0  # requests that another engine had taken before
    peak_blocks: int = 0  # blocks
    swapped_out: int = 0  # blocks
    swapped_in: int = 0  # blocks
    stored: int = 0  # blocks, written behind
    copied: int = 0  # blocks, on write
