"""The flags of `octavo serve` that say how a chat is read and what it is sampled with."""

from __future__ import annotations

import argparse
from typing import get_args

from octavo.cluster.text.reasoning import ReasoningKind
from octavo.cluster.text.tool_calls import ToolFormat


def add_chat_flags(parser: argparse.ArgumentParser) -> None:
    """Adds them as a group of their own."""
    group = parser.add_argument_group("chat", "how this model writes, and is best sampled")
    group.add_argument(
        "--enable-auto-tool-choice",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="let the model decide whether to call a tool; needs --tool-call-parser (default: off)",
    )
    group.add_argument(
        "--tool-call-parser",
        choices=get_args(ToolFormat),
        help="how the model writes calls of tools: hermes for Hermes and Qwen, llama3_json for "
        "Llama 3, pythonic for Llama 3.2 and others that write Python (default: none)",
    )
    group.add_argument(
        "--reasoning-parser",
        choices=get_args(ReasoningKind),
        help="split <think> blocks from the answer into reasoning_content: deepseek_r1 for models "
        "that always reason, qwen3 for those that may (default: leave them in the text)",
    )
    group.add_argument(
        "--generation-config",
        choices=("auto", "vllm"),
        default="auto",
        help="where temperature, top_p, top_k, min_p and repetition_penalty come from if a request "
        "has none: auto for the model's generation_config.json, vllm for the API's own defaults "
        "(default: %(default)s)",
    )
