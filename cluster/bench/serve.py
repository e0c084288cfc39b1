"""`octavo bench serve`: a load on an OpenAI server, whoever's it is."""

from __future__ import annotations

import argparse
import asyncio
import datetime
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from octavo.cluster.bench.answers import Answer
from octavo.cluster.bench.bodies import CHAT, Bodies
from octavo.cluster.bench.load import Run, send_all
from octavo.cluster.bench.measure import Measured, measure
from octavo.cluster.bench.options import (
    chosen_metrics,
    chosen_percentiles,
    objectives,
    pairs,
)
from octavo.cluster.bench.report import (
    check_folder,
    details,
    notes,
    result_path,
    save,
    summary,
    table,
)
from octavo.cluster.bench.target import Served, Target, endpoint, find_model, target_of
from octavo.cluster.bench.workload import requests_of, self_timed, times_of
from octavo.cluster.traces.request import Request
from octavo.scheduler.errors import InvalidRequest

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)

Say = Callable[[str], None]


def bench_serve(arguments: argparse.Namespace, say: Say) -> bool:
    """Sends the load, prints the table, and saves what is to be saved. Whether any request was
    answered. Raises `InvalidRequest`, or `EngineDead` where the server cannot be reached."""
    metrics = chosen_metrics(arguments.percentile_metrics)
    percentiles = chosen_percentiles(arguments.metric_percentiles)
    goals = objectives(arguments.goodput)
    metadata = pairs(arguments.metadata, "metadata")
    if arguments.max_concurrency is not None and arguments.max_concurrency < 1:
        raise InvalidRequest(
            "max_concurrency",
            f"max_concurrency must be at least 1, got {arguments.max_concurrency}",
        )
    self_timed(arguments)
    if arguments.save_result or arguments.append_result:
        check_folder(Path(arguments.result_dir or "."), "result_dir")
    if arguments.plot:
        from octavo.cluster.bench.plot import check_plot

        check_plot(arguments.plot)
    target = target_of(arguments)
    served = asyncio.run(find_model(arguments, target))
    requests, bodies = _prepare(arguments, served, say)
    times = times_of(arguments, requests)
    _announce(arguments, requests, served, say)
    run = asyncio.run(_run(arguments, target, bodies, times))
    _complete(run.answers, requests)
    measured = measure(run.answers, run.duration, percentiles, goals)
    print(
        table(
            measured,
            run,
            metrics,
            max_concurrency=arguments.max_concurrency,
            request_rate=arguments.request_rate,
        ),
        flush=True,
    )
    for note in notes(measured, run):
        say(note)
    _save(arguments, served, run, measured, metrics, metadata, say)
    return measured.completed > 0


async def _run(
    arguments: argparse.Namespace,
    target: Target,
    bodies: Sequence[bytes],
    times: Sequence[float],
) -> Run:
    if arguments.num_warmups:
        warm = [bodies[number % len(bodies)] for number in range(arguments.num_warmups)]
        await send_all(target, warm, [0.0] * len(warm), max_concurrency=arguments.max_concurrency)
    with tqdm(total=len(bodies), unit="req", disable=arguments.disable_tqdm or None) as bar:

        def on_answer(_: Answer) -> None:
            bar.update()

        return await send_all(
            target,
            bodies,
            times,
            max_concurrency=arguments.max_concurrency,
            on_answer=on_answer,
        )


def _prepare(
    arguments: argparse.Namespace, served: Served, say: Say
) -> tuple[list[Request], list[bytes]]:
    from octavo.cluster.bench.tokenizers import named_tokenizer, tokenizer_nearby

    if arguments.skip_tokenizer_init:
        tokenizer = None
    elif arguments.tokenizer is not None:
        tokenizer = named_tokenizer(arguments.tokenizer, say)
    else:
        tokenizer = tokenizer_nearby(served.root) or tokenizer_nearby(served.name)
    chat = endpoint(arguments).endswith(CHAT)
    requests = requests_of(arguments, tokenizer, chat=chat)
    fields: dict[str, Any] = {
        name: getattr(arguments, name) for name in SAMPLING if getattr(arguments, name) is not None
    }
    if arguments.ignore_eos:
        fields["ignore_eos"] = True
    bodies = Bodies(
        served.name,
        chat=chat,
        prompt_format=arguments.prompt_format,
        tokenizer=tokenizer,
        seed=arguments.seed,
        fields={**fields, **(arguments.extra_body or {})},
    )
    encoded = [bodies.encode(request) for request in requests]
    if tokenizer is None and bodies.made_up:
        say(f"no tokenizer of {served.name} here (see --tokenizer): prompts are of few token ids")
    return requests, encoded


def _announce(
    arguments: argparse.Namespace, requests: Sequence[Request], served: Served, say: Say
) -> None:
    if len(requests) < arguments.num_prompts:
        say(f"{arguments.dataset_name} gives {len(requests)} of {arguments.num_prompts} prompts")
    if served.max_len is not None:
        long = sum(each.prompt_len + each.output_len > served.max_len for each in requests)
        if long:
            say(f"{long} request(s) are longer than the {served.max_len} tokens that are served")
    if self_timed(arguments):
        print("Requests are sent at the times of the trace.")
    else:
        law = "Poisson process" if arguments.burstiness == 1 else "Gamma distribution"
        if arguments.ramp_up_strategy is None:
            print(f"Traffic request rate: {arguments.request_rate}")
        else:
            print(f"Traffic ramp-up strategy: {arguments.ramp_up_strategy}")
        print(f"Burstiness factor: {arguments.burstiness} ({law})")
    print(f"Maximum request concurrency: {arguments.max_concurrency}", flush=True)


def _complete(answers: Sequence[Answer], requests: Sequence[Request]) -> None:
    """Lengths that the server did not tell: of a prompt, what was meant to be sent; of an answer,
    the events that it came in."""
    for answer, request in zip(answers, requests, strict=True):
        answer.prompt_len = answer.prompt_len or request.prompt_len
        if not answer.error:
            answer.output_len = answer.output_len or 1 + len(answer.itls)


def _what(arguments: argparse.Namespace, served: Served) -> str:
    """The load in a line."""
    if self_timed(arguments):
        when = f"{arguments.trace_speed:g} times as fast as it was recorded"
    elif arguments.ramp_up_strategy is not None:
        ends = f"{arguments.ramp_up_start_rps:g} to {arguments.ramp_up_end_rps:g}"
        when = f"{ends} requests/s"
    elif arguments.request_rate == float("inf"):
        when = "all at once"
    else:
        when = f"{arguments.request_rate:g} requests/s"
    most = arguments.max_concurrency
    bound = "" if most is None else f", at most {most} in flight"
    return f"{served.name}, {arguments.dataset_name}, {when}{bound}"


def _save(
    arguments: argparse.Namespace,
    served: Served,
    run: Run,
    measured: Measured,
    metrics: Sequence[str],
    metadata: Mapping[str, str],
    say: Say,
) -> None:
    now = datetime.datetime.now()
    if arguments.plot:
        from octavo.cluster.bench.plot import draw

        draw(arguments.plot, run.answers, measured, _what(arguments, served))
        say(f"drew {arguments.plot}")
    if not arguments.save_result and not arguments.append_result:
        return
    rate = arguments.request_rate
    label = arguments.label or arguments.backend
    result: dict[str, Any] = {
        "date": f"{now:%Y%m%d-%H%M%S}",
        "endpoint_type": arguments.backend,
        "backend": arguments.backend,
        "label": arguments.label,
        "model_id": served.name,
        "tokenizer_id": arguments.tokenizer or served.root,
        "num_prompts": arguments.num_prompts,
        **metadata,
        "request_rate": "inf" if rate == float("inf") else rate,
        "burstiness": arguments.burstiness,
        "max_concurrency": arguments.max_concurrency,
    }
    if arguments.ramp_up_strategy is not None:
        for name in ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"):
            result[name] = getattr(arguments, name)
    result |= summary(measured, run, metrics)
    if arguments.save_detailed:
        result |= details(run)
    path = result_path(
        arguments.result_dir,
        arguments.result_filename,
        label=label,
        request_rate=rate,
        max_concurrency=arguments.max_concurrency,
        model=served.name,
        now=now,
    )
    save(path, result, append=arguments.append_result)
    say(f"saved {path}")
