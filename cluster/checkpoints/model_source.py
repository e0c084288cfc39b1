"""Finds the model that a user named: a directory, a name on the Hugging Face hub, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from octavo.scheduler.errors import InvalidRequest

TEXT_PATTERNS = ["*.json", "*.model", "*.txt", "*.jinja"]
PATTERNS = [*TEXT_PATTERNS, "*.safetensors"]


def resolve_model(
    model: str | None,
    on_progress: Callable[[str], None] = lambda _: None,
    *,
    weights: bool = True,
) -> tuple[Path, tuple[str, ...]]:
    """The model's directory and the names it is served under unless others are given.

    None is the embedded model. Without `weights`, what a download brings is enough for texts.
    Raises `InvalidRequest` or `embedded.ModelUnavailable` with one sentence that says what to do.
    """
    if model is None:
        from octavo.cluster.checkpoints import embedded

        return embedded.prepare(on_progress=on_progress), (embedded.NAME,)
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve(), tuple(dict.fromkeys((path.resolve().name, model)))
    if path.exists():
        raise InvalidRequest("model", f"{model} is a file; name the directory that holds the model")
    if model.startswith(("/", ".", "~")) or model.count("/") != 1:
        raise InvalidRequest(
            "model",
            f"there is no directory {model}; name one, a hub model such as Qwen/Qwen3-0.6B, or "
            "none for the embedded model",
        )
    return _download(model, on_progress, PATTERNS if weights else TEXT_PATTERNS), (model,)


def _download(name: str, on_progress: Callable[[str], None], patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    on_progress(f"looking for {name} in the cache and on the hub")
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (GatedRepoError, RepositoryNotFoundError, HFValidationError):
        problem = "the hub has no such model, or it needs a login (set HF_TOKEN)"
    except LocalEntryNotFoundError:
        problem = "it is not in the cache and the hub cannot be reached"
    except (OSError, ValueError) as error:
        problem = f"the download failed: {str(error).splitlines()[0]}"
    raise InvalidRequest(
        "model",
        f"cannot get the model {name}: {problem}; name a directory, or none for the embedded model",
    )
