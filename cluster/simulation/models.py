"""Models by the sizes that a step's time and memory depend on: a few by name, all others by their
`config.json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.model_config import ModelConfig

WEIGHT_BYTES = 2  # bfloat16


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """One decoder. `projections` is how many matrices its feed-forward layer has: three where it
    is gated, two in OPT. Parameters are counts, all ranks together."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int
    projections: int = 3
    tied: bool = False

    @property
    def layer_parameters(self) -> int:
        """Of all layers' matrices: read in each step, whatever is computed."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + self.projections * self.hidden * self.intermediate)

    @property
    def head_parameters(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def weight_bytes(self) -> int:
        """With the embedding, which is looked up and not read through."""
        tables = 1 if self.tied else 2
        return WEIGHT_BYTES * (self.layer_parameters + tables * self.head_parameters)

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token, all ranks together."""
        return 2 * WEIGHT_BYTES * self.layers * self.kv_heads * self.head_dim

    @classmethod
    def of(cls, model: ModelConfig) -> ModelSizes:
        return cls(
            name=Path(model.path).name,
            layers=model.num_layers,
            hidden=model.hidden_size,
            heads=model.num_heads,
            kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            intermediate=model.intermediate_size,
            vocabulary=model.vocab_size,
            context=model.context_length,
            tied=model.tie_word_embeddings,
        )


def _opt(name: str, layers: int, hidden: int, heads: int) -> ModelSizes:
    return ModelSizes(
        name, layers, hidden, heads, heads, hidden // heads, 4 * hidden, 50_272, 2048, 2, True
    )


NAMED = {
    each.name: each
    for each in (
        _opt("opt-13b", 40, 5120, 40),
        _opt("opt-66b", 64, 9216, 72),
        _opt("opt-175b", 96, 12_288, 96),
        ModelSizes("llama-13b", 40, 5120, 40, 40, 128, 13_824, 32_000, 2048),
        ModelSizes("llama-3.1-8b", 32, 4096, 32, 8, 128, 14_336, 128_256, 131_072),
        ModelSizes("llama-3.1-70b", 80, 8192, 64, 8, 128, 28_672, 128_256, 131_072),
        ModelSizes("mistral-7b", 32, 4096, 32, 8, 128, 14_336, 32_768, 32_768),
        ModelSizes("qwen3-8b", 36, 4096, 32, 8, 128, 12_288, 151_936, 40_960),
        ModelSizes("qwen3-32b", 64, 5120, 64, 8, 128, 25_600, 151_936, 40_960),
        ModelSizes("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49_152, 8192, tied=True),
    )
}


def find_model(name: str) -> ModelSizes:
    """One that is known by name, or the one whose `config.json` is in that directory. Raises
    `InvalidRequest`."""
    if (known := NAMED.get(name.lower())) is not None:
        return known
    path = Path(name)
    if not path.exists():
        raise InvalidRequest(
            "model",
            f"{name!r} is neither a directory that holds a config.json nor one of "
            f"{', '.join(NAMED)}",
        )
    return ModelSizes.of(ModelConfig.from_directory(path.parent if path.is_file() else path))
