"""Loaded by schemathesis: turns what it thinks of into what a tiny model can do in a moment."""

from __future__ import annotations

from typing import Any

import schemathesis

from tests.tiny import VOCABULARY

IDS = ("prompt", "tokens", "allowed_token_ids", "stop_token_ids")
# Each is refused beside some of the others, or by a server that does not know how the model writes
# calls. By chance most bodies would have several, and be refused.
DEMANDING = (
    *("structured_outputs", "response_format", "guided_json", "guided_regex", "guided_choice"),
    *("guided_grammar", "guided_whitespace_pattern", "use_beam_search", "best_of"),
    *("early_stopping", "length_penalty", "stream_options", "prompt_logprobs", "top_logprobs"),
    *("tools", "tool_choice", "truncate_prompt_tokens", "min_tokens", "priority", "seed", "top_k"),
    *("text", "reasoning", "logit_bias", "bad_words"),
)


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Half of all bodies keep what is demanding."""
    if not isinstance(body, dict) or not {"tokens", "messages", "prompt", "input"} & body.keys():
        return body
    body = {name: known(value) if name in IDS else value for name, value in body.items()}
    body.pop("model", None)
    if "tokens" in body:
        return body
    for name in DEMANDING if len(repr(body)) % 2 else ():
        body.pop(name, None)
    body.pop("max_completion_tokens", None)
    return body | {"max_tokens": 2, "max_output_tokens": 2}


def known(value: Any) -> Any:
    """Token ids that the model has in place of others. JSON's 5.0 is an integer, but no id."""
    if isinstance(value, list):
        return [known(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value % VOCABULARY if type(value) is int and value > 0 else value
