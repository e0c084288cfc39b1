"""One run: the peers that were asked for, installed; then workload by workload, all sides."""

from __future__ import annotations

import argparse
import importlib.metadata
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from machine import describe, row
from peers import offline, servers
from peers.environments import (
    LLAMA_BUILD,
    VLLM,
    LlamaPlace,
    VllmPlace,
    install_llama,
    install_vllm,
    say,
)
from peers.offline import BatchedBench, Library
from peers.servers import OctavoServer, Server
from peers.setup import QUESTIONS, Setup
from peers.turns import Side, table, take_turns
from peers.workloads import OFFLINE, SERVED, Workload

from octavo.cluster.checkpoints.embedded import prepare

PEERS = ("vllm", "llama.cpp", "transformers")
STATIC = (16, 64)


class Speaker(Side, Protocol):
    def chat(self, question: str) -> str: ...


class Run:
    """`args` are those of `python -m peers`. Installs what is missing; `everything` measures."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        model = prepare(on_progress=say)
        self._setup = Setup(model, args.threads, args.environments / "logs", args.vllm_eager)
        self._vllm: VllmPlace | None = None
        self._llama: LlamaPlace | None = None
        if "vllm" in args.peers:
            self._vllm = install_vllm(args.environments)
        if "llama.cpp" in args.peers:
            self._llama = install_llama(args.environments, model, args.threads)

    def everything(self) -> None:
        self._tell(self._versions())
        if OFFLINE.key in self._args.workloads:
            self._without_servers()
        if any(workload.key in self._args.workloads for workload in SERVED):
            self._through_servers()

    def _without_servers(self) -> None:
        with ExitStack() as stack:
            speakers: list[Library] = stack.enter_context(offline.octavo(self._setup))
            if self._vllm:
                speakers += stack.enter_context(offline.vllm(self._setup, self._vllm))
            sides: list[Side] = [*speakers]
            if "transformers" in self._args.peers:
                static = stack.enter_context(offline.transformers(self._setup, STATIC))
                speakers.append(static[0])
                sides += static
                sides += stack.enter_context(offline.continuous(self._setup))
            if self._llama:
                sides += [BatchedBench(self._setup, self._llama, size) for size in STATIC]
            self._measure(sides, OFFLINE)
            self._answers("Answers without a server", speakers)

    def _through_servers(self) -> None:
        with ExitStack() as stack:
            sides: list[Server | OctavoServer] = [OctavoServer(self._setup)]
            if self._vllm:
                sides.append(stack.enter_context(servers.vllm(self._setup, self._vllm)))
            if self._llama:
                sides.append(stack.enter_context(servers.llama(self._setup, self._llama)))
            for workload in SERVED:
                if workload.key in self._args.workloads:
                    self._measure(sides, workload)
            self._answers("Answers of the servers", sides)

    def _measure(self, sides: Sequence[Side], workload: Workload) -> None:
        args = self._args
        turns = take_turns(sides, workload, args.rounds, args.slow_rounds, args.threads)
        self._tell(table(workload, turns))

    def _answers(self, title: str, speakers: Sequence[Speaker]) -> None:
        lines = [f"### {title}, greedy", "", row("side", *QUESTIONS)]
        lines.append(row(*["---"] * (1 + len(QUESTIONS))))
        for speaker in speakers:
            with speaker.turn():
                answers = [" ".join(speaker.chat(question).split()) for question in QUESTIONS]
            lines.append(row(speaker.name, *(answer.replace("|", "\\|") for answer in answers)))
        self._tell("\n".join([*lines, ""]))

    def _versions(self) -> str:
        parts = [describe(), f"{self._args.threads} threads a side"]
        if self._vllm:
            how = "eager" if self._args.vllm_eager else "compiled"
            preload = " and ".join(path.rsplit("/", 1)[-1] for path in self._vllm.preload)
            parts.append(f"vLLM {VLLM} ({how}, with {preload or 'nothing preloaded'})")
        if self._llama:
            parts.append(f"llama.cpp {LLAMA_BUILD}")
        if "transformers" in self._args.peers:
            parts.append(f"transformers {importlib.metadata.version('transformers')}")
        return "; ".join(parts) + ".\n"

    def _tell(self, text: str) -> None:
        print(text, flush=True)
        if self._args.output:
            with self._args.output.open("a") as file:
                print(text, file=file)
