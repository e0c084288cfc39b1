"""The CUDA kernels as far as a CPU can run them: Triton's by its interpreter."""

import pytest
import torch


@pytest.fixture
def cuda_kernels():
    """Interpreted, with attention by Triton."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("with a GPU, scripts/gpu_check.sh compares the compiled kernels instead")
    from octavo.kernels.cuda.kernels import CudaKernels

    return CudaKernels(torch.device("cpu"))
