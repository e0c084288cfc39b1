"""Octavo: a Ray-distributed LLM serving cluster built on paged attention.

    from octavo import LLM, SamplingParams

    with LLM() as llm:  # the embedded model
        print(llm.generate("The capital of France is", SamplingParams(temperature=0)))

`LLM` is imported when first named, so that `import octavo.scheduler…` stays free of torch and ray.
"""

import os
from typing import TYPE_CHECKING

from octavo.scheduler.errors import (
    EngineDead,
    InvalidRequest,
    NeverFits,
    OctavoError,
    QueueFull,
    RequestFailed,
)
from octavo.scheduler.grammar import Grammar
from octavo.scheduler.sampling import SamplingParams

if TYPE_CHECKING:
    from octavo.cluster.offline.llm import LLM as LLM
    from octavo.cluster.offline.outputs import CompletionOutput as CompletionOutput
    from octavo.cluster.offline.outputs import RequestOutput as RequestOutput

__version__ = "0.1.0"

# Read by torch's thread library when torch is first imported. Unasked, its threads spin for
# milliseconds after each of torch's operations, on the cores that the kernels' own threads and the
# other processes of a server need: a decode step then takes half as long again.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

_LAZY = {
    "LLM": "octavo.cluster.offline.llm",
    "CompletionOutput": "octavo.cluster.offline.outputs",
    "RequestOutput": "octavo.cluster.offline.outputs",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineDead",
    "Grammar",
    "InvalidRequest",
    "NeverFits",
    "OctavoError",
    "QueueFull",
    "RequestFailed",
    "RequestOutput",
    "SamplingParams",
]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
