"""How a model's makers advise to sample from it: `generation_config.json` beside its weights."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.sampling import SamplingParams

_log = logging.getLogger(__name__)
_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(model_path: Path) -> dict[str, float]:
    """Those of vLLM's names that the file sets; what makes no sense there is logged and left out.
    As in vLLM, `do_sample` is not looked at."""
    try:
        read: Any = json.loads((model_path / "generation_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _log.warning("generation_config.json is left out, as it cannot be read: %s", error)
        return {}
    given = read if isinstance(read, dict) else {}
    defaults: dict[str, float] = {}
    for name in _NAMES:
        value = given.get(name)
        if value is None:
            continue
        try:
            number: Any = int(value) if name == "top_k" else float(value)
            SamplingParams(**{name: number})
            defaults[name] = number
        except (InvalidRequest, TypeError, ValueError) as error:
            _log.warning("generation_config.json: %s is left out: %s", name, error)
    return defaults
