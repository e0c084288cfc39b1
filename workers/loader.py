"""Reads safetensors checkpoints by slices, so that a rank reads its share of a model and no more.

Knows files, names and shapes; which slices a model wants is the model's business.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from octavo.scheduler.errors import InvalidRequest

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHOWN = 5  # names in an error message


class Checkpoint:
    """An open checkpoint directory. `bytes_read` counts what slices were taken, in file bytes.

    Use as a context manager, take every tensor wanted, then call `finish`, which refuses tensors
    that nobody took. Raises `InvalidRequest("model", …)` naming the tensor or file at fault.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.bytes_read = 0
        self._files = ExitStack()
        self._where: dict[str, Any] = {}
        self._taken: set[str] = set()
        for path in self._paths():
            try:
                file: Any = self._files.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise InvalidRequest("model", f"cannot read {path}: {error}") from None
            for name in file.keys():  # noqa: SIM118 (not a dict)
                self._where[name] = file

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.close()

    def _paths(self) -> list[Path]:
        index = self.directory / INDEX_FILE
        single = self.directory / SINGLE_FILE
        if index.exists():
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            missing = [name for name in names if not (self.directory / name).exists()]
            if missing:
                raise InvalidRequest(
                    "model", f"{index} speaks of files that are not there: {some(missing)}"
                )
            return [self.directory / name for name in names]
        if single.exists():
            return [single]
        raise InvalidRequest(
            "model", f"{self.directory} holds neither {SINGLE_FILE} nor {INDEX_FILE}"
        )

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def read_into(
        self, out: Tensor, name: str, shape: tuple[int, ...], part: range, dim: int = 0
    ) -> None:
        """Copies indices `part` of axis `dim` of tensor `name`, which must have this whole
        `shape`, into `out`, converting the data type. Reads only that part of the file."""
        if name not in self._where:
            raise InvalidRequest("model", f"{self.directory} lacks the tensor {name}")
        view = self._where[name].get_slice(name)
        found = tuple(view.get_shape())
        if found != shape:
            raise InvalidRequest(
                "model",
                f"tensor {name} in {self.directory} has the shape {list(found)}, but config.json "
                f"implies {list(shape)}",
            )
        self._taken.add(name)
        if not part:
            return
        wanted = slice(part.start, part.stop)
        content = view[wanted] if dim == 0 else view[:, wanted]
        self.bytes_read += content.numel() * content.element_size()
        out.copy_(content)

    def finish(self, ignored_suffixes: tuple[str, ...] = ()) -> None:
        """Every tensor must have been taken, save those whose name ends in an ignored suffix."""
        extra = sorted(
            name for name in self._where.keys() - self._taken if not name.endswith(ignored_suffixes)
        )
        if extra:
            raise InvalidRequest(
                "model",
                f"{self.directory} holds tensors that config.json does not explain: {some(extra)}",
            )


def torch_dtype(name: str) -> torch.dtype:
    """torch's own object for one of the data type names that configs use."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def some(names: list[str]) -> str:
    """The first few, for an error message."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
