"""The PagedAttention paper's evaluation (Kwon et al., SOSP 2023), simulated: ours beside theirs.

    python benchmarks/paper.py [memory rates beams prefix chat blocks swap] [--row-ms MS]

The scheduler that serves runs under a virtual clock, with the memory for keys and values of the
paper's table 1 and a roofline of its GPUs. `paged` is Octavo; `max`, `pow2` and `oracle` reserve at
admission as the paper's Orca variants do, in the same engine with the same chunked prefill.

What is taken from the paper: blocks, models, GPUs, mean lengths, Poisson arrivals, and what pages
cost an attention kernel (its figure 18a: 20-26 % at blocks of 16; `CELL_BYTES`), which reserved
memory does not pay. So is what its engine spends on each sequence in a step besides (`--row-ms`):
30.42 requests at 2 a second (figure 13a) take 45 ms a token by Little's law, 132.44 at 30 a second
(13b) take 75 ms, of which the roofline explains 35 and 31; 0.33 ms a sequence explain both. Orca is
the authors' own in the same code. With 0 there is what the GPU would allow.

Lengths are log-normal with the paper's means; their spread, mean over median 1.45, is such that a
request of `oracle` holds 732 tokens on average, which its figures 2 and 13a imply (63.4 % of 15,728
slots for 13.62 requests). Not as in the paper: Orca keeps each sequence in one piece, and so loses
9 to 42 % of memory between the pieces; here all that is free can be used. Rows "less fragments"
have a pool that is smaller by as much.

paper_runs.py has the servers and the search for the highest rate that is sustained; several tokens
are simulated as one there. paper_reasons.py tries what may explain rows that are off.
"""

from __future__ import annotations

import argparse

import msgspec
from driver import say
from machine import row
from paper_runs import (
    BOUNDS,
    FRAGMENTS,
    GRAIN,
    LLAMA_13B,
    OPT_13B,
    OPT_66B,
    OPT_175B,
    ROW_MS,
    SECONDS,
    drawn_lengths,
    engine,
    length,
    off,
    repeated,
    sustained,
    until_last_arrival,
    without_fragments,
    workload,
)

from octavo.cluster.simulation.models import NAMED, ModelSizes
from octavo.cluster.simulation.setup import simulate
from octavo.cluster.traces.lengths import PAPER_MEANS

compared = [OPT_13B, OPT_66B, OPT_175B]
replayed = list(PAPER_MEANS)


def memory() -> None:
    """Figures 2, 13a and 13b."""
    paper = {
        "max": (7.00, "20.4 / 13.3 / 57.3 / 8.9", 7.00),
        "pow2": (9.81, "26.8 / 17.9 / 13.6 / 41.6", 43.24),
        "oracle": (13.62, "38.2 / 25.2 / 0 / 36.6", 72.75),
        "paged": (30.42, "96.3 / 3.7 together", 132.44),
    }
    print(row("lengths, rate", "allocation", "at once", "paper", "off",
              "token states / reserved / wasted / free, %", "paper"))  # fmt: skip
    print(row(*["---"] * 7))
    for name, rate, place in (("sharegpt", 2.0, 0), ("alpaca", 30.0, 2)):
        jobs = workload(name)(rate)
        for allocation, known in paper.items():
            say(f"{name}, {allocation}")
            setup = OPT_13B.setup(allocation)
            runs = [(allocation, setup)]
            if allocation in FRAGMENTS:
                runs.append((f"{allocation}, less fragments", without_fragments(setup)))
            for title, changed in runs:
                found = until_last_arrival(changed, jobs)
                shares = "-" if found.memory is None else " / ".join(
                    f"{each:.1f}" for each in msgspec.structs.astuple(found.memory)
                )  # fmt: skip
                theirs = known[1] if place == 0 else ""
                cells = f"{found.running:.2f}", known[place], off(found.running, known[place])
                print(row(f"{name}, {rate:g}/s", title, *cells, shares, theirs), flush=True)


def rates() -> None:
    """Figure 12."""
    knees = {"max": "0.5", "pow2": "0.75", "oracle": "1.0-1.1", "paged": "1.9"}
    columns = ["model", "lengths", "allocation", "sustained, requests/s", "paper's curve"]
    columns += ["paged / this", "paper's text", "less fragments", "paged / this"]
    print(row(*columns))
    print(row(*["---"] * 9))
    text = {"max": "2.7-8", "oracle": "1.7-2.7"}
    for served in compared:
        for name in replayed:
            jobs, grain = workload(name, served.seconds), GRAIN[name]
            low, high = BOUNDS[served.model, name]
            found: dict[str, tuple[float, float]] = {}
            for allocation in ("paged", "oracle", "pow2", "max"):
                setup = served.setup(allocation, grain=grain)
                rate = less = sustained(setup, jobs, low, high)
                high = min(high, rate * 1.1)  # each of them keeps up with no more than the last
                if allocation in FRAGMENTS:
                    less = sustained(without_fragments(setup), jobs, low, high)
                found[allocation] = rate, less
                best = found["paged"][0]
                say(f"{served.model}, {name}, {allocation}: {rate:.2f}, {less:.2f}")
                known = served is OPT_13B and name == "sharegpt"
                said = text.get(allocation, "") if name == "sharegpt" else ""
                ratios = [f"{best / each:.2f}" if each else "-" for each in (rate, less)]
                curve = knees[allocation] if known else ""
                cells = f"{rate:.2f}", curve, ratios[0], said, f"{less:.2f}", ratios[1]
                print(row(served.model, name, allocation, *cells), flush=True)


def beams() -> None:
    """Figure 14, Alpaca's lengths. Orca's beams and samples are so many requests of their own."""
    print(row("request", "oracle, requests/s", "paged, requests/s", "paged / oracle",
              "less fragments", "paged / this", "paper"))  # fmt: skip
    print(row(*["---"] * 7))
    known = {(1, "samples"): "1.3", (6, "beams"): "2.3"}
    for kind, sizes in (("samples", (1, 2, 4, 6)), ("beams", (2, 4, 6))):
        # Beams part and end at any token, so theirs are simulated one by one, for half as long.
        grain, longest = (GRAIN["alpaca"], 1800.0) if kind == "samples" else (1, 300.0)
        high = 60.0
        for size in sizes:
            many = {"n": size, "temperature": 1.0} if kind == "samples" else {"beam_width": size}
            oracle = OPT_13B.setup("oracle", grain=GRAIN["alpaca"])
            paged = OPT_13B.setup(grain=grain, sampling=many if size > 1 else {})
            apart = workload("alpaca", longest, copies=size)
            best = sustained(paged, workload("alpaca", longest), 1.0, high)
            high = 1.1 * best
            less = without_fragments(oracle)
            found = [sustained(each, apart, 1.0, high) for each in (oracle, less)]
            rates = f"{found[0]:.2f}", f"{best:.2f}", f"{best / found[0]:.2f}"
            name = f"{size} {kind}" if size > 1 else "one answer"
            last = f"{found[1]:.2f}", f"{best / found[1]:.2f}"
            print(row(name, *rates, *last, known.get((size, kind), "")), flush=True)


def prefix() -> None:
    """Figure 16: LLaMA-13B translates; one or five examples before every sentence. Sentences of 35
    tokens and translations of 50 are a guess."""
    print(row("prefix, tokens", "oracle, requests/s", "paged", "paged / oracle", "paper", "off",
              "less fragments", "paged / this"))  # fmt: skip
    print(row(*["---"] * 8))
    for shared, paper in ((80, 1.67), (341, 3.58)):
        jobs = repeated(drawn_lengths((35.0, 50.0)), SECONDS["alpaca"], shared)
        oracle = LLAMA_13B.setup("oracle", grain=GRAIN["alpaca"])
        found = [
            sustained(setup, jobs, 2.0, 80.0)
            for setup in (oracle, LLAMA_13B.setup(grain=GRAIN["alpaca"]), without_fragments(oracle))
        ]
        ratio = found[1] / found[0]
        cells = f"{found[0]:.2f}", f"{found[1]:.2f}", f"{ratio:.2f}", paper, off(ratio, paper)
        print(row(shared, *cells, f"{found[2]:.2f}", f"{found[1] / found[2]:.2f}"), flush=True)


def chat() -> None:
    """Figure 17: the last 1,024 tokens of a conversation, up to 1,024 in answer. Nothing is kept
    between turns. Prompts are taken to be 1,024 long, answers as ShareGPT's."""
    lengths = [(1024, min(1024, answer)) for _, answer in drawn_lengths(PAPER_MEANS["sharegpt"])]
    jobs = repeated(lengths, SECONDS["sharegpt"])
    print(row("allocation", "sustained, requests/s", "paged / this", "paper"))
    print(row(*["---"] * 4))
    best = sustained(OPT_13B.setup(grain=8), jobs, 0.1, 4.0)
    print(row("paged", f"{best:.2f}", "", ""))
    for allocation in ("max", "pow2", "oracle"):
        rate = sustained(OPT_13B.setup(allocation, grain=8), jobs, 0.1, 4.0)
        print(row(allocation, f"{rate:.2f}", f"{best / rate:.2f}", "2"), flush=True)


def blocks() -> None:
    """Figure 18b: mean normalized latency by block size, at a load near the knee."""
    print(
        row(
            "block size",
            "ShareGPT, 1.8/s, ms a token",
            "preemptions",
            "Alpaca, 20/s",
            "preemptions",
        )
    )
    print(row(*["---"] * 5))
    loads = [(workload("sharegpt"), 1.8), (workload("alpaca"), 20.0)]
    for size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        cells: list[object] = [size]
        for jobs, rate in loads:
            found = simulate(OPT_13B.setup(size=size), jobs(rate))
            cells += [f"{1e3 * found.normalized_latency.mean:.1f}", found.preemptions]
        say(f"blocks of {size}")
        print(row(*cells), flush=True)


def swap() -> None:
    """Figure 19: preemption by block size, by swapping with one copy a block, as Octavo's cache
    allows, and with one for each layer's keys and values, as the paper's. Nothing is written
    behind."""
    columns = ["block size", "recompute, ms a token", "swap", "swap, a copy a layer"]
    columns += ["one preemption at 512 tokens: recompute, ms", "swap", "swap, a copy a layer"]
    print(row(*columns))
    print(row(*["---"] * 7))
    jobs = workload("sharegpt")(2.0)
    model: ModelSizes = NAMED["opt-13b"]
    for size in (1, 4, 16, 64, 256):
        base = OPT_13B.setup(size=size, host_bytes=12 * 2**30)
        whole: list[str] = []
        for mode, copies in (("recompute", 1), ("swap", 1), ("swap", 2 * model.layers)):
            changes = {"preemption_mode": mode, "write_behind_blocks": 0}
            found = simulate(base.changed(changes, copies=copies), jobs)
            whole.append(f"{1e3 * found.normalized_latency.mean:.1f}")
        single = [base.cost().prefill(512, 2048)]
        for copies in (1, 2 * model.layers):
            single.append(2 * base.changed(copies=copies).cost().copy(-(-512 // size)))
        say(f"blocks of {size}")
        print(row(size, *whole, *(f"{1e3 * each:.1f}" for each in single)), flush=True)


PARTS = {each.__name__: each for each in (memory, rates, beams, prefix, chat, blocks, swap)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--row-ms", type=float, default=ROW_MS)
    parser.add_argument("--length", type=float, default=1.0, help="times the length of all runs")
    parser.add_argument("--models", nargs="+", help="for rates, default: all")
    parser.add_argument(
        "--data", nargs="+", choices=list(PAPER_MEANS), help="for rates, default: both"
    )
    args = parser.parse_args()
    length["factor"] = args.length
    if args.models:
        compared[:] = [each for each in compared if each.model in args.models]
    replayed[:] = args.data or replayed
    engine["row_seconds"] = args.row_ms / 1e3
    for name in args.parts or PARTS:
        if name not in PARTS:
            parser.error(f"{name!r} is none of {', '.join(PARTS)}")
        print(f"\n{name}: {PARTS[name].__doc__}\n".replace("\n    ", "\n"))
        PARTS[name]()


if __name__ == "__main__":
    main()
