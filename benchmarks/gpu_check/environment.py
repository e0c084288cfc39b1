"""What the machine is, and what is installed on it."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from benchmarks.gpu_check.report import Report
from benchmarks.gpu_check.setting import Setting

PACKAGES = ("torch", "triton", "flashinfer-python", "numpy", "msgspec", "safetensors", "psutil")


def check_environment(setting: Setting, report: Report) -> None:
    report.figures["python"] = platform.python_version()
    report.figures["packages"] = {name: _version(name) for name in PACKAGES}
    report.figures["processor"] = _processor()
    report.figures["nvcc"] = _nvcc()
    if setting.device.type == "cuda":
        _gpu(setting, report)
    with_them = importlib.util.find_spec("msgspec") is not None
    report.check("msgspec is installed (the engine's wire needs it)", with_them)


def _gpu(setting: Setting, report: Report) -> None:
    facts = torch.cuda.get_device_properties(setting.device)
    free, total = torch.cuda.mem_get_info(setting.device)
    report.figures["gpu"] = {
        "name": facts.name,
        "count": torch.cuda.device_count(),
        "capability": f"{facts.major}.{facts.minor}",
        "GiB": round(total / 2**30, 1),
        "GiB free": round(free / 2**30, 1),
        "CUDA of torch": torch.version.cuda,
    }
    x = torch.randn(512, 512, device=setting.device)
    report.check("a product on the GPU", bool(torch.isfinite(x @ x).all()))
    from octavo.workers.transfers import how_copied

    report.figures["copies between the tiers"] = how_copied()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _nvcc() -> str:
    path = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(path).exists():
        return "not found"
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return next((line.strip() for line in said.splitlines() if "release" in line), "unknown")
