"""Names the weights in a model directory, without reading all of them."""

from __future__ import annotations

import struct
from hashlib import blake2b
from pathlib import Path

PROBES = 16  # places of a file that are looked at
PROBE_BYTES = 4096
MAX_HEADER_BYTES = 100_000_000  # the format's own bound


def model_revision(directory: str | Path) -> str:
    """32 hexadecimal digits from `config.json` and, of each safetensors file, its name, size and
    header and some of its content. The same for equal directories wherever they lie; a file that
    cannot be read counts by its name alone, and loading says what is wrong with it."""
    digest = blake2b(digest_size=16, person=b"octavo-model")
    folder = Path(directory)
    for path in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
        for part in (path.name.encode(), _facts(path)):
            digest.update(struct.pack("<Q", len(part)) + part)
    return digest.hexdigest()


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
