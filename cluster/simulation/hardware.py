"""Devices by what a step's time depends on: memory, bandwidth, arithmetic, links, fixed costs.

Peaks are the makers' own figures: dense bfloat16, one direction of a link. What a kernel gets of
them are shares, and those are guesses that hold for good kernels in general; whoever has measured
better ones passes a file of the same fields (`--hardware FILE`), as benchmarks/calibrate.py writes
it for the machine that it runs on.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from octavo.scheduler.errors import InvalidRequest

GIB = 2**30


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device. Bytes, bytes a second, operations a second, seconds.

    The `_share`s are what is reached of a peak. `overlap` says how far arithmetic hides behind
    reading: 1, only the longer of the two counts; 0, both do. A step costs `step_seconds`, and
    `row_seconds` for each sequence in it, on top of `layer_seconds` a layer; an all-reduce costs
    `sync_seconds`, and a copy between the tiers `copy_seconds`, besides their bytes.
    `cell_bytes` is how many bytes could have been read in the time that it takes to find the keys,
    or the values, of one block, layer and head: what paging costs an attention kernel.
    Keys and values that another sequence of the step has read as well, in the same blocks, cost
    `repeated_read_share` of what they cost it: less than 1 where they are still in a cache.
    """

    name: str
    memory: float
    bandwidth: float
    flops: float
    link: float
    host_link: float
    bandwidth_share: float = 0.8
    flops_share: float = 0.6
    attention_bandwidth_share: float = 0.75
    attention_flops_share: float = 0.45
    overlap: float = 1.0
    step_seconds: float = 1e-3
    layer_seconds: float = 2e-5
    row_seconds: float = 0.0
    sync_seconds: float = 1.5e-5
    copy_seconds: float = 1e-5
    cell_bytes: float = 256.0
    repeated_read_share: float = 1.0


PRESETS = {
    each.name: each
    for each in (
        Hardware(
            name="a100-40",
            memory=39.4 * GIB,
            bandwidth=1.555e12,
            flops=312e12,
            link=300e9,
            host_link=25e9,
        ),
        Hardware(
            name="a100-80",
            memory=79.2 * GIB,
            bandwidth=2.039e12,
            flops=312e12,
            link=300e9,
            host_link=25e9,
        ),
        Hardware(
            name="h100",
            memory=79.2 * GIB,
            bandwidth=3.35e12,
            flops=989e12,
            link=450e9,
            host_link=50e9,
        ),
        Hardware(
            name="h200",
            memory=139.8 * GIB,
            bandwidth=4.8e12,
            flops=989e12,
            link=450e9,
            host_link=50e9,
        ),
        Hardware(
            name="b200",
            memory=178.4 * GIB,
            bandwidth=7.7e12,
            flops=2250e12,
            link=900e9,
            host_link=50e9,
        ),
        Hardware(  # one memory for processor and GPU; two boxes are joined by a 200 Gbit/s network
            name="gb10",
            memory=119.0 * GIB,
            bandwidth=273e9,
            flops=125e12,
            link=25e9,
            host_link=100e9,
        ),
    )
}


def find_hardware(name: str) -> Hardware:
    """A preset, or what the JSON file of that name says. Raises `InvalidRequest`."""
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if not path.is_file():
        raise InvalidRequest(
            "hardware",
            f"--hardware {name!r} is neither a file nor one of {', '.join(PRESETS)}",
        )
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Hardware)
    except msgspec.DecodeError as error:
        raise InvalidRequest("hardware", f"--hardware {name}: {error}") from None
    for field in ("memory", "bandwidth", "flops", "link", "host_link"):
        if not getattr(found, field) > 0:
            raise InvalidRequest(
                "hardware",
                f"--hardware {name}: {field} must be above 0, got {getattr(found, field)}",
            )
    return found
