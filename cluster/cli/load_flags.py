"""The flags that say what an engine is asked, and when: `octavo bench` sends it, `octavo simulate`
works out what would come of it."""

from __future__ import annotations

from octavo.cluster.bench.names import OBJECTIVES
from octavo.cluster.cli.values import Flag

DATASET_NAME = Flag("--dataset-name", help="default: %(default)s")
DATASET_PATH = Flag("--dataset-path", metavar="FILE")
NUM_PROMPTS = Flag("--num-prompts", type=int, metavar="N")
SEED = Flag(
    "--seed",
    type=int,
    default=0,
    help="decides prompts, lengths, order and arrivals (default: %(default)s)",
)
N = Flag("--n", type=int, default=1, help="answers to each prompt (default: %(default)s)")
RANDOM_INPUT_LEN = Flag(
    "--random-input-len",
    type=int,
    default=1024,
    metavar="TOKENS",
    help="random: tokens of a prompt (default: %(default)s)",
)
RANDOM_OUTPUT_LEN = Flag(
    "--random-output-len",
    type=int,
    default=128,
    metavar="TOKENS",
    help="random: tokens of an answer (default: %(default)s)",
)
REQUEST_RATE = Flag(
    "--request-rate",
    type=float,
    metavar="RATE",
    help="requests a second; inf sends all at once (default: %(default)s)",
)
BURSTINESS = Flag(
    "--burstiness",
    type=float,
    default=1.0,
    metavar="SHAPE",
    help="1 is a Poisson process, less comes in bursts, more comes evenly (default: %(default)s)",
)
CHUNK_HASH_SIZE = Flag(
    "--timed-trace-chunk-hash-size",
    type=int,
    metavar="TOKENS",
    help="tokens that a hash id stands for",
)
GOODPUT = Flag(
    "--goodput",
    nargs="+",
    metavar="NAME:MS",
    help=f"count requests that meet these objectives, of {', '.join(OBJECTIVES)}",
)
