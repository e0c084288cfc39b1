"""More of transformers' decoders than `make test` has time for: `make test-models`."""

from __future__ import annotations

import pytest

from tests.workers.breadth import MORE
from tests.workers.test_generic import verify_served


@pytest.mark.parametrize("model_type", MORE)
def test_greedy_tokens_are_those_of_transformers(tmp_path, model_type):
    verify_served(tmp_path, model_type, MORE[model_type])
