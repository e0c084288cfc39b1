"""One library without a server, in an interpreter of its own: answers a line of JSON with another.

Asked `{"prompts": [[ids]], "output": n, "at_once": m}` it generates, greedily and past the end
token, and says `{"seconds": s, "tokens": n}`; asked `{"question": text, "output": n}` it says
`{"text": answer}`. The first line it says is "ready".

Runs in environments that have nothing of Octavo's, so it imports nothing from its neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Protocol

Prompts = list[list[int]]


class Side(Protocol):
    """`generate` returns how many tokens it made."""

    def generate(self, prompts: Prompts, output: int, at_once: int) -> int: ...

    def chat(self, question: str, output: int) -> str: ...


class Octavo:
    def __init__(self, args: argparse.Namespace) -> None:
        from octavo import LLM, SamplingParams

        self._llm = LLM(args.model, num_threads=args.threads)
        self._params = SamplingParams

    def generate(self, prompts: Prompts, output: int, at_once: int) -> int:
        sampling = self._params(temperature=0, max_tokens=output, ignore_eos=True)
        outputs = self._llm.generate(prompts, sampling, use_tqdm=False)
        return sum(len(each.outputs[0].token_ids) for each in outputs)

    def chat(self, question: str, output: int) -> str:
        sampling = self._params(temperature=0, max_tokens=output)
        outputs = self._llm.chat(_conversation(question), sampling, use_tqdm=False)
        return str(outputs[0].outputs[0].text)


class Vllm:
    def __init__(self, args: argparse.Namespace) -> None:
        from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

        self._llm = LLM(args.model, dtype="bfloat16", enforce_eager=args.vllm_eager)
        self._params = SamplingParams

    def generate(self, prompts: Prompts, output: int, at_once: int) -> int:
        sampling = self._params(temperature=0, max_tokens=output, ignore_eos=True)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(given, sampling, use_tqdm=False)
        return sum(len(each.outputs[0].token_ids) for each in outputs)

    def chat(self, question: str, output: int) -> str:
        sampling = self._params(temperature=0, max_tokens=output)
        outputs = self._llm.chat(_conversation(question), sampling, use_tqdm=False)
        return str(outputs[0].outputs[0].text)


class Transformers:
    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(args.threads)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(args.model)
        models: Any = AutoModelForCausalLM
        self._model = models.from_pretrained(args.model, dtype=torch.bfloat16).eval()

    def generate(self, prompts: Prompts, output: int, at_once: int) -> int:
        import torch

        tokens = 0
        for start in range(0, len(prompts), at_once):
            batch = torch.tensor(prompts[start : start + at_once])
            made = self._model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                do_sample=False,
                min_new_tokens=output,
                max_new_tokens=output,
            )
            tokens += made[:, batch.shape[1] :].numel()
        return tokens

    def chat(self, question: str, output: int) -> str:
        given = self._tokenizer.apply_chat_template(
            _conversation(question),
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        made = self._model.generate(**given, do_sample=False, max_new_tokens=output)
        answer = made[0, given["input_ids"].shape[1] :]
        return str(self._tokenizer.decode(answer, skip_special_tokens=True))


class Continuous(Transformers):
    """Its cache is made anew in each call, just large enough: by default it takes 60 % of all
    memory."""

    PAGE = 256

    def generate(self, prompts: Prompts, output: int, at_once: int) -> int:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        longest = max(map(len, prompts)) + output
        blocks = len(prompts) * -(-longest // self.PAGE)
        settings: Any = GenerationConfig
        made = self._model.generate_batch(
            prompts,
            generation_config=settings(do_sample=False, max_new_tokens=output, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=self.PAGE, num_blocks=blocks
            ),
        )
        return sum(len(each.generated_tokens) for each in made.values())


SIDES: dict[str, type[Octavo | Vllm | Transformers]] = {
    "octavo": Octavo,
    "vllm": Vllm,
    "transformers": Transformers,
    "continuous": Continuous,
}


def _conversation(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _answer(side: Side, asked: dict[str, Any]) -> dict[str, Any]:
    if "question" in asked:
        return {"text": side.chat(asked["question"], asked["output"])}
    begin = time.perf_counter()
    tokens = side.generate(asked["prompts"], asked["output"], asked["at_once"])
    return {"seconds": time.perf_counter() - begin, "tokens": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--vllm-eager", action="store_true")
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not end up among the answers
    side = SIDES[args.side](args)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(side, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
