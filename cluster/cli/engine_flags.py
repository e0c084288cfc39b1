"""The flags of an engine: `octavo serve` has all of them, `octavo bench` those of an engine in its
process, `octavo simulate` those that its model of an engine knows."""

from __future__ import annotations

import argparse
from typing import get_args

from octavo.cluster.cli.values import Flag, size
from octavo.scheduler.config import Allocation, PreemptionMode
from octavo.workers.config import CACHE_DTYPES, DEVICES, DTYPES, MODEL_IMPLS, QUANTIZATIONS

MODEL = (
    "a directory in Hugging Face's layout, or a name on the hub "
    "(default: the embedded SmolLM2-135M-Instruct)"
)

MAX_MODEL_LEN = Flag(
    "--max-model-len",
    type=int,
    metavar="TOKENS",
    help="longest prompt and answer together (default: the model's own)",
)
BLOCK_SIZE = Flag(
    "--block-size",
    type=int,
    default=16,
    metavar="TOKENS",
    help="tokens a block, a power of two (default: %(default)s)",
)
NUM_GPU_BLOCKS_OVERRIDE = Flag(
    "--num-gpu-blocks-override",
    type=int,
    metavar="BLOCKS",
    help="number of blocks, on any device (default: what fits)",
)
GPU_MEMORY_UTILIZATION = Flag(
    "--gpu-memory-utilization",
    type=float,
    default=0.9,
    metavar="SHARE",
    help="share of a GPU's memory that model and cache may take (default: %(default)s)",
)
ENABLE_PREFIX_CACHING = Flag(
    "--enable-prefix-caching",
    action=argparse.BooleanOptionalAction,
    default=True,
    help="share the blocks of equal prefixes between requests (default: on)",
)
SWAP_SPACE = Flag(
    "--swap-space",
    type=float,
    metavar="GIB",
    help="host memory a rank for blocks that the device has no room for, in GiB; 0 for none "
    "(default: up to 4, as the machine's memory allows)",
)
ALLOCATION = Flag(
    "--allocation",
    choices=get_args(Allocation),
    default="paged",
    help="paged takes blocks as they are needed; the others reserve them at admission, for "
    "comparison: max for --max-model-len, pow2 for the prompt and the answer's length rounded "
    "up to a power of two, oracle for what will be used; they turn prefix caching off "
    "(default: %(default)s)",
)
MAX_NUM_SEQS = Flag(
    "--max-num-seqs",
    type=int,
    default=256,
    metavar="N",
    help="sequences that run at once (default: %(default)s)",
)
MAX_NUM_BATCHED_TOKENS = Flag(
    "--max-num-batched-tokens",
    type=int,
    metavar="TOKENS",
    help="tokens computed a step (default: 256 on the CPU, 2048 on CUDA)",
)
PREEMPTION_MODE = Flag(
    "--preemption-mode",
    choices=get_args(PreemptionMode),
    default="auto",
    help="what becomes of a preempted request's blocks: recompute them later, swap them to the "
    "host, or the quicker of the two each time (default: %(default)s)",
)
WATERMARK_LOW = Flag(
    "--watermark-low",
    type=float,
    default=0.04,
    metavar="SHARE",
    help="below this share of free blocks no request is admitted (default: %(default)s)",
)
WATERMARK_HIGH = Flag(
    "--watermark-high",
    type=float,
    default=0.08,
    metavar="SHARE",
    help="admission resumes at this share of free blocks (default: %(default)s)",
)
TENSOR_PARALLEL_SIZE = Flag(
    "--tensor-parallel-size",
    "-tp",
    type=int,
    default=1,
    metavar="N",
    help="ranks that share one model (default: %(default)s)",
)
NUM_REPLICAS = Flag(
    "--num-replicas",
    type=int,
    default=1,
    metavar="N",
    help="copies of the model, each with its own ranks and cache (default: %(default)s)",
)
EXECUTOR = Flag(
    "--executor",
    choices=("ray", "local"),
    help="ray: actors and Ray Serve; local: one process without Ray (default: %(default)s)",
)


def add_model(parser: argparse.ArgumentParser) -> None:
    """What a model is loaded as."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="data type to compute in; auto is the checkpoint's (default: %(default)s)",
    )
    group.add_argument(
        "--kv-cache-dtype",
        choices=CACHE_DTYPES,
        default="auto",
        help="data type of kept keys and values; auto is the one computed in, fp8 holds twice as "
        "many tokens on a GPU, for answers that differ a little (default: %(default)s)",
    )
    group.add_argument(
        "--quantization",
        "-q",
        choices=QUANTIZATIONS,
        help="make the layers' weights int8, or on a GPU fp8, while loading: half the memory of "
        "bfloat16 and quicker steps of few sequences, for answers that differ a little (default: "
        "as in the checkpoint)",
    )
    group.add_argument(
        "--model-impl",
        choices=MODEL_IMPLS,
        default="auto",
        help="whose definition of the model computes: octavo's own, which is faster, or "
        "transformers', which has most decoders; auto takes the own one where there is one "
        "(default: %(default)s)",
    )
    MAX_MODEL_LEN.add(group)
    group.add_argument(
        "--seed",
        type=int,
        help="answers requests that bring no seed repeatably: the same requests in the same order "
        "get the same random numbers (default: fresh ones each time)",
    )


def add_cache(parser: argparse.ArgumentParser) -> None:
    """What keys and values are kept in."""
    group = parser.add_argument_group("cache", "memory for keys and values")
    BLOCK_SIZE.add(group)
    NUM_GPU_BLOCKS_OVERRIDE.add(group)
    group.add_argument(
        "--kv-cache-memory-bytes",
        type=size,
        metavar="SIZE",
        help="cache size a rank, such as 2GiB or 512MB (default: a share of the free memory)",
    )
    GPU_MEMORY_UTILIZATION.add(group)
    ENABLE_PREFIX_CACHING.add(group)
    SWAP_SPACE.add(group)
    ALLOCATION.add(group)


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """How requests take turns."""
    group = parser.add_argument_group("scheduling")
    MAX_NUM_SEQS.add(group)
    MAX_NUM_BATCHED_TOKENS.add(group)
    group.add_argument(
        "--max-num-queued-reqs",
        type=int,
        default=1024,
        metavar="N",
        help="requests that may wait; more get 503 and Retry-After (default: %(default)s)",
    )
    PREEMPTION_MODE.add(group)
    WATERMARK_LOW.add(group)
    WATERMARK_HIGH.add(group)


def add_device(group: argparse._ArgumentGroup) -> None:
    """What a rank computes with."""
    group.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        help="auto is cuda where there is a GPU (default: %(default)s)",
    )
    group.add_argument(
        "--enforce-eager",
        action="store_true",
        help="record no CUDA graphs: less memory and a quicker start, but slower steps of few "
        "sequences (default: off)",
    )
    group.add_argument(
        "--cuda-graph-sizes",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of sequences for which decode steps are recorded as CUDA graphs; one number "
        "is the largest of the usual ones (default: up to 512)",
    )
    group.add_argument(
        "--num-threads",
        type=int,
        metavar="N",
        help="CPU threads a rank (default: an even share of this machine's cores)",
    )
