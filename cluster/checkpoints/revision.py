"""Names the weights in a model directory, without reading all of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

PROBES = 16  # places of a file that are looked at
PROBE_BYTES = 4096
MAX_HEADER_BYTES = 100_000_000  # the format's own bound


def model_revision(directory: str | Path, adapters: Mapping[str, str] | None = None) -> str:
    """32 hexadecimal digits from `config.json` and, of each safetensors file, its name, size and
    header and some of its content, and the same of the directories of `adapters` and their names.
    Equal for equal directories wherever they lie; a file that cannot be read counts by its name
    alone, and loading says what is wrong with it."""
    digest = blake2b(digest_size=16, person=b"octavo-model")
    _add_folder(digest, Path(directory), "config.json")
    for name, path in (adapters or {}).items():
        _add(digest, name.encode())
        _add_folder(digest, Path(path), "adapter_config.json")
    return digest.hexdigest()


def _add_folder(digest: blake2b, folder: Path, config: str) -> None:
    for path in [folder / config, *sorted(folder.glob("*.safetensors"))]:
        _add(digest, path.name.encode())
        _add(digest, _facts(path))


def _add(digest: blake2b, part: bytes) -> None:
    digest.update(struct.pack("<Q", len(part)) + part)


def _facts(path: Path) -> bytes:
    try:
        if path.suffix != ".safetensors":
            return path.read_bytes()
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
            parts = [struct.pack("<QQ", size, length), file.read(min(length, MAX_HEADER_BYTES))]
            for probe in range(PROBES):  # tells fine-tuned weights from those they began as
                file.seek(max(0, size - PROBE_BYTES) * (probe + 1) // PROBES)
                parts.append(file.read(PROBE_BYTES))
    except OSError:
        return b""
    return b"".join(parts)
