"""Every Triton kernel compiles for GPUs, which the interpreter cannot tell."""

import os
import subprocess
import sys

import pytest

LEAST_SHARED = 99 * 1024  # bytes that a program may have on a GPU of compute capability 8.6
CONFIGURATIONS = [
    "80,256,bfloat16,bfloat16",
    "89,128,bfloat16,float8_e4m3fn",
    "90,128,float32,float32",
]
KERNELS = {
    *("_store", "_attend_pieces", "_attend_singles", "_merge_singles", "_move"),
    *("_rms_norm", "_silu_and_mul", "_linear"),
}


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_they_compile(configuration, tmp_path):
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    script = "tests.kernels.cuda.compiled"
    done = subprocess.run(
        [sys.executable, "-m", script, configuration],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shared = [(name, int(size)) for name, size in map(str.split, done.stdout.splitlines())]
    assert {name for name, _ in shared} == KERNELS
    assert max(size for _, size in shared) <= LEAST_SHARED, shared
