"""The flags of `octavo serve` that name LoRA adapters."""

from __future__ import annotations

import argparse


def add_lora_flags(parser: argparse.ArgumentParser) -> None:
    """Adds them as a group of their own."""
    group = parser.add_argument_group("adapters", "LoRA weights beside the model's own")
    group.add_argument(
        "--enable-lora",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="serve the adapters of --lora-modules (default: off)",
    )
    group.add_argument(
        "--lora-modules",
        nargs="+",
        metavar="NAME=PATH",
        help="adapters as PEFT saves them, in safetensors; a request's `model` may be a NAME. Each "
        'may also be JSON: {"name": ..., "path": ..., "base_model_name": ...}',
    )
    group.add_argument(
        "--max-loras",
        type=int,
        metavar="N",
        help="adapters whose requests may run at once; those of more wait (default: all)",
    )
    group.add_argument(
        "--max-lora-rank",
        type=int,
        default=16,
        metavar="RANK",
        help="adapters of a higher rank are refused (default: %(default)s)",
    )
