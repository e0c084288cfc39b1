"""Reads pictures as the dashboard does, in Python."""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from octavo.cluster.picture import Heading, TierLine
from octavo.cluster.playback.film import Film, Films


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
    return expand(tier.total, tier.runs, raw)


def expand(total: int, runs: int, raw: bytes) -> list[int]:
    """One code a block."""
    if runs < 0:
        assert len(raw) == total
        return list(raw)
    assert len(raw) == 5 * runs
    lengths, kinds = struct.unpack_from(f"<{runs}I", raw), raw[4 * runs :]
    made = [kind for length, kind in zip(lengths, kinds, strict=True) for _ in range(length)]
    assert len(made) == total
    return made


def read_films(raw: bytes) -> list[tuple[Film, list[list[int]]]]:
    """Each film, with the codes of each of its frames."""
    (length,) = struct.unpack_from("<I", raw)
    at, made = 4 + length, []
    for each in msgspec.json.decode(raw[4:at], type=Films).films:
        shown = []
        for frame in each.frames:
            shown.append(expand(each.total, frame.runs, raw[at : at + frame.size]))
            at += frame.size
        made.append((each, shown))
    assert at == len(raw)
    return made
