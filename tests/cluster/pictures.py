"""Reads pictures as the dashboard does, in Python."""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from octavo.cluster.picture import Heading, TierLine


class Picture(NamedTuple):
    heading: Heading
    device: list[int]
    host: list[int]


def read_picture(raw: bytes) -> Picture:
    (length,) = struct.unpack_from("<I", raw)
    heading = msgspec.json.decode(raw[4 : 4 + length], type=Heading)
    body = raw[4 + length :]
    assert len(body) == heading.device.size + heading.host.size
    device, host = body[: heading.device.size], body[heading.device.size :]
    return Picture(heading, _codes(heading.device, device), _codes(heading.host, host))


def _codes(tier: TierLine, raw: bytes) -> list[int]:
    if tier.runs < 0:
        assert len(raw) == tier.total
        return list(raw)
    assert len(raw) == 5 * tier.runs
    lengths = struct.unpack_from(f"<{tier.runs}I", raw)
    kinds = raw[4 * tier.runs :]
    made = [kind for length, kind in zip(lengths, kinds, strict=True) for _ in range(length)]
    assert len(made) == tier.total
    return made
