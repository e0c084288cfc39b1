"""One command for a machine with a GPU and little else: is all right there, and how fast is it?

    scripts/gpu_check.sh                      every part, in under eight minutes, on cuda
    scripts/gpu_check.sh --parts engine,graphs --device cpu --tiny

Each part is a process of its own: one that breaks the GPU's context, or hangs, takes no other
along. The results go to a JSON file, which is whole after each part. The exit status is 0 if every
part passed or could not run here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from shutil import disk_usage
from typing import Any

from benchmarks.gpu_check.report import CannotRun, Report, first_line

SECONDS = 460.0  # for all parts
MODELS = 4 * 2**30  # bytes that they may need


def _lazily(module: str, name: str) -> Callable[[Any, Report], None]:
    """A part whose module is imported when it runs: what one lacks is no other's trouble."""

    def run(setting: Any, report: Report) -> None:
        from importlib import import_module

        getattr(import_module(f"benchmarks.gpu_check.{module}"), name)(setting, report)

    return run


# By name: the part, and for how many seconds it may run. The first are what the others need.
PARTS: dict[str, tuple[Callable[[Any, Report], None], float]] = {
    "environment": (_lazily("environment", "check_environment"), 60),
    "kernels": (_lazily("kernels", "check_kernels"), 200),
    "triton": (_lazily("kernels", "check_triton"), 100),
    "engine": (_lazily("engine", "check_engine"), 120),
    "graphs": (_lazily("engine", "check_graphs"), 120),
    "fp8": (_lazily("narrow", "check_fp8"), 60),
    "fences": (_lazily("swaps", "check_fences"), 60),
    "swaps": (_lazily("engine", "check_swaps"), 90),
    "memory": (_lazily("memory", "check_memory"), 60),
    "ranks": (_lazily("ranks", "check_ranks"), 90),
    "copies": (_lazily("swaps", "measure_copies"), 60),
    "attention": (_lazily("speed", "measure_attention"), 90),
    "steps": (_lazily("speed", "measure_steps"), 150),
}


def run_part(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """In this process."""
    report, began = Report(), time.monotonic()
    status = "passed"
    reason = ""
    try:
        import torch

        from benchmarks.gpu_check.setting import Setting

        setting = Setting(
            torch.device(options.device), options.dtype, options.kernels, folder, options.tiny
        )
        if setting.device.type == "cuda" and not torch.cuda.is_available():
            raise CannotRun("torch finds no GPU")
        PARTS[name][0](setting, report)
    except CannotRun as why:
        status, reason = "could not run", str(why)
    except ModuleNotFoundError as missing:
        status, reason = "could not run", f"the package {missing.name} is not installed"
    except Exception as error:
        status, reason = "failed", f"{type(error).__name__}: {first_line(error)}"
    if report.failures:
        status = "failed"
    found = {"status": status, "seconds": round(time.monotonic() - began, 1)}
    return found | ({"reason": reason} if reason else {}) | report.as_dict()


def run_apart(name: str, options: argparse.Namespace, folder: Path, left: float) -> dict[str, Any]:
    """In a process of its own, ended when its time is up."""
    seconds = min(PARTS[name][1], left)
    if seconds < 5:
        return {"status": "could not run", "reason": "no time was left"}
    answer = folder / f"{name}.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--part", name]
    command += ["--folder", str(folder), "--out", str(answer), "--device", options.device]
    command += ["--dtype", options.dtype, "--kernels", options.kernels]
    command += ["--tiny"] if options.tiny else []
    began = time.monotonic()
    try:
        done = subprocess.run(command, timeout=seconds, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "failed", "reason": f"it took more than {seconds:.0f} s"}
    if not answer.exists():
        last = "; ".join(done.stderr.strip().splitlines()[-5:])
        return {
            "status": "failed",
            "seconds": round(time.monotonic() - began, 1),
            "reason": f"its process ended with status {done.returncode}: {last}",
        }
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def say(name: str, found: dict[str, Any]) -> None:
    print(f"{name:<12} {found['status']:<14} {found.get('seconds', 0):>6} s  ", end="")
    print(found.get("reason", "") or f"{found.get('passed', 0)} checks passed", flush=True)
    for failure in found.get("failures", []):
        print(f"    FAILED {failure}", flush=True)
    for missed in found.get("missed", []):
        print(f"    MISSED {missed}", flush=True)
    for what, figure in found.get("figures", {}).items():
        print(f"    {what}: {figure}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--kernels", default="auto", help="as octavo.kernels.select names them")
    parser.add_argument("--parts", help=f"some of {','.join(PARTS)}, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all parts together")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes: does the check itself run?"
    )
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.part:
        found = run_part(options.part, options, options.folder)
        options.out.write_text(json.dumps(found, indent=1))
        return 0
    names = options.parts.split(",") if options.parts else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    end = time.monotonic() + options.seconds
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="gpu_check-", dir=_room()) as folder:
        for name in names:
            results[name] = {"status": "running"}
            options.out.write_text(json.dumps(results, indent=1))
            results[name] = run_apart(name, options, Path(folder), end - time.monotonic())
            options.out.write_text(json.dumps(results, indent=1))
            say(name, results[name])
    unable = [name for name, found in results.items() if found["status"] == "could not run"]
    failed = [name for name, found in results.items() if found["status"] == "failed"]
    print(
        f"could not run: {', '.join(unable) or 'nothing'}; failed: {', '.join(failed) or 'nothing'}"
    )
    print(f"results: {options.out}")
    return 1 if failed else 0


def _room() -> str | None:
    """Models are written to memory where there is a folder for that, and room in it."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and disk_usage(memory).free > MODELS else None


if __name__ == "__main__":
    sys.exit(main())
