"""The embedded model answers in the form that it is asked for, and says what it knows in it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from octavo import LLM, Grammar, SamplingParams
from octavo.cluster.checkpoints.embedded import prepare

CITY = {"type": "string", "pattern": "^[A-Z][a-z]{2,12}$"}
PLACE = {
    "type": "object",
    "properties": {"capital": CITY, "is_in_europe": {"type": "boolean"}},
    "required": ["capital", "is_in_europe"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": CITY, "minItems": 3, "maxItems": 3}
QUESTIONS: list[tuple[str, Grammar]] = [
    ("Name the capital of France, as JSON.", Grammar("json", json.dumps(PLACE))),
    ("Name three cities in Italy, as a JSON list.", Grammar("json", json.dumps(LIST))),
    ("Is Paris the capital of France?", Grammar("lark", 'start: "Yes" | "No"')),
    ("In which year did World War II end?", Grammar("regex", "(19|20)[0-9]{2}")),
    ("Tell me about Paris, as JSON.", Grammar("json", '{"type": "object"}')),
]


def test_the_embedded_model_answers_in_form() -> None:
    with LLM(prepare(), max_model_len=256) as llm:
        outputs = llm.chat(
            [[{"role": "user", "content": text}] for text, _ in QUESTIONS],
            [SamplingParams(temperature=0, max_tokens=64, grammar=each) for _, each in QUESTIONS],
            use_tqdm=False,
        )
    answers = [output.outputs[0] for output in outputs]
    assert [answer.finish_reason for answer in answers[:4]] == ["stop"] * 4
    place: dict[str, Any] = json.loads(answers[0].text)
    jsonschema.validate(place, PLACE)
    assert place["capital"] == "Paris"
    jsonschema.validate(json.loads(answers[1].text), LIST)
    assert answers[2].text in ("Yes", "No") and answers[3].text == "1945"
    anything = answers[4]
    assert anything.finish_reason == "length" or isinstance(json.loads(anything.text), dict)
