"""The tokenizer of a server's model, if it can be had here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.errors import InvalidRequest, OctavoError


def named_tokenizer(name: str, say: Callable[[str], None]) -> Tokenizer:
    """Of a directory, of a model on the hub, or of the embedded model. Raises `InvalidRequest`."""
    from octavo.cluster.checkpoints import embedded, model_source

    given = None if name == embedded.NAME else name
    try:
        path, _ = model_source.resolve_model(given, say, weights=False)
        return Tokenizer.load(path)
    except InvalidRequest as error:
        raise InvalidRequest("tokenizer", f"--tokenizer: {error.message}") from None


def tokenizer_nearby(name: str) -> Tokenizer | None:
    """Of a model by the name that its server gives it, without a download; None where that name
    says nothing to this machine."""
    from octavo.cluster.checkpoints import embedded

    if name == embedded.NAME:
        try:
            return Tokenizer.load(embedded.prepare())
        except OctavoError:
            return None
    path = Path(name).expanduser()
    if not path.is_dir():
        from huggingface_hub import try_to_load_from_cache

        try:
            found = try_to_load_from_cache(name, "tokenizer.json")
        except ValueError:
            return None
        if not isinstance(found, str):
            return None
        path = Path(found).parent
    try:
        return Tokenizer.load(path)
    except InvalidRequest:
        return None
