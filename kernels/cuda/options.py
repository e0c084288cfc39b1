"""How Triton kernels are compiled, where its own default is about to change."""

from __future__ import annotations

FUSED = {"enable_fp_fusion": True}  # a product and a sum are rounded once
