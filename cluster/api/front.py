"""What every route shares: the engine, the tokenizer and the settings of one model."""

from __future__ import annotations

import itertools
import secrets
import time
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from uuid import uuid4

from octavo.cluster.api.failures import UnknownModel
from octavo.cluster.api.generation_config import sampling_defaults
from octavo.cluster.api.protocol import SamplingFields
from octavo.cluster.api.settings import FrontSettings
from octavo.cluster.api.structured import asked_grammar
from octavo.cluster.api.validate import Window
from octavo.cluster.api.version import octavo_version
from octavo.cluster.client import EngineClient
from octavo.cluster.text.grammars import Grammars
from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.grammar import Grammar
from octavo.scheduler.sampling import mix_seed


class Seeds:
    """Seeds for requests that bring none: unpredictable, or a sequence that can be repeated."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._drawn = itertools.count(1)

    def draw(self) -> int:
        """The next one; not negative where it is unpredictable."""
        if self._seed is None:
            return secrets.randbits(63)
        return mix_seed(self._seed, next(self._drawn))


@dataclass(frozen=True)
class Front:
    client: EngineClient
    settings: FrontSettings
    tokenizer: Tokenizer

    @cached_property
    def seeds(self) -> Seeds:
        return Seeds(self.settings.seed)

    async def grammar_of(self, body: SamplingFields) -> Grammar | None:
        """What the answer must be a sentence of, if the client cares. Raises `InvalidRequest` for
        what is no grammar, and `QueueFull` where too many are tried."""
        asked = asked_grammar(body)
        return None if asked is None else await self.grammars.check(*asked)

    @cached_property
    def fingerprint(self) -> str:
        """Names the software and the model; the same pair gives the same answers to a seed."""
        names = "\n".join(self.settings.served_model_names)
        model = blake2b(names.encode(), digest_size=4).hexdigest()
        return f"octavo-{octavo_version()}-{model}"

    @cached_property
    def sampling_defaults(self) -> dict[str, float]:
        """What the model's makers advise where a request says nothing."""
        if self.settings.generation_config == "vllm":
            return {}
        return sampling_defaults(Path(self.settings.model_path))

    @cached_property
    def grammars(self) -> Grammars:
        return Grammars(self.tokenizer)

    async def window(self) -> Window:
        """What a request may be, as soon as a replica is up to say so. Raises `EngineDead` where
        none comes in time."""
        await self.client.ensure_up()
        return Window.of(self.client.stats())

    def served_model(self, asked: str | None) -> str:
        """The name to answer with. Raises `UnknownModel`."""
        names = self.settings.names
        if asked is not None and asked not in names:
            raise UnknownModel(asked, names)
        return asked or names[0]

    def adapter_of(self, name: str) -> str:
        """The adapter that `served_model` named, "" for the model itself."""
        return name if name in self.settings.adapters else ""


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid4().hex}"


def now() -> int:
    return int(time.time())
