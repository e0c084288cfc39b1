"""`/tokenize` and `/detokenize`: vLLM's shapes."""

from __future__ import annotations

from octavo.cluster.api.answers import DetokenizeAnswer, TokenizeAnswer
from octavo.cluster.api.front import Front
from octavo.cluster.api.prompts import chat_prompt, tokenize
from octavo.cluster.api.protocol import DetokenizeRequest, TokenizeRequest
from octavo.cluster.api.tools import shown_tools
from octavo.cluster.api.validate import within_vocabulary
from octavo.scheduler.errors import InvalidRequest


async def tokenize_answer(front: Front, body: TokenizeRequest) -> TokenizeAnswer:
    """Token ids of a text or a conversation, their number, and the model's length."""
    front.served_model(body.model)
    window = await front.window()
    tokenizer, limits = front.tokenizer, front.settings.limits
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("prompt", "give either prompt or messages")
    if body.messages is not None:
        prompt = await chat_prompt(
            body.messages,
            tokenizer,
            limits,
            limits.body_bytes,
            add_generation_prompt=body.add_generation_prompt is not False,
            template_kwargs=body.chat_template_kwargs,
            tools=shown_tools(body.tools, limits),
        )
        tokens = prompt.tokens
    else:
        special = body.add_special_tokens is not False
        text = body.prompt or ""
        tokens = (
            await tokenize(tokenizer, text, "prompt", limits.body_bytes, add_special_tokens=special)
        ).tokens
    answer = TokenizeAnswer(count=len(tokens), max_model_len=window.max_model_len, tokens=tokens)
    if body.return_token_strs:
        answer.token_strs = [tokenizer.token_text(token) for token in tokens]
    return answer


def detokenize_answer(front: Front, body: DetokenizeRequest) -> DetokenizeAnswer:
    """The text of token ids, special ones shown."""
    front.served_model(body.model)
    within_vocabulary("tokens", body.tokens, front.tokenizer.vocab_size)
    return DetokenizeAnswer(front.tokenizer.decode(body.tokens, skip_special_tokens=False))
