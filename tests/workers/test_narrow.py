"""FP8 weights and an FP8 cache: what becomes of numbers, that answers stay close, and who may ask.

On CPUs only plain torch has them, slowly: it is the twin of what GPUs compute.
"""

import pytest
import torch

from octavo.kernels.quantized import FP8, narrowed, round_rows
from octavo.kernels.reference import ReferenceKernels
from octavo.kernels.select import missing_for_fp8
from octavo.kernels.torch_ops import TorchKernels
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.plan import decode_result, encode
from octavo.scheduler.sampling import SamplingParams
from tests.workers.plans import generation_plans
from tests.workers.test_generation import make_worker, random_prompts

PROMPTS = random_prompts(5, 33, 18)
SCORED = SamplingParams(temperature=0, logprobs=1, prompt_logprobs=0)


def test_levels_are_the_nearest():
    weight = torch.randn(40, 70, generator=torch.Generator().manual_seed(0))
    weight *= torch.logspace(-6, 6, 40)[:, None]
    weight[3], weight[4, 5] = 0, float("nan")
    levels, scales = round_rows(weight)
    fit = [row for row in range(40) if row != 4]
    assert (levels.dtype, scales.dtype) == (FP8, torch.float32)
    assert (levels[fit].float().abs().amax(1) == torch.tensor([448.0] * 3 + [0.0] + [448.0] * 35)
            ).all()  # fmt: skip
    error = (levels[fit].double() * scales[fit, None] - weight[fit].double()).abs()
    least = scales[fit, None].double() * 2.0**-10  # half of the smallest step
    assert (error <= weight[fit].double().abs() * 2.0**-4 + least).all()
    assert not scales[4].isfinite(), "the results must show it"


def test_what_has_no_room_becomes_the_largest():
    x = torch.tensor([1e4, -1e4, 448.0, 1.0, 2.0**-12, float("nan")])
    assert narrowed(x, FP8).float().tolist()[:5] == [448, -448, 448, 1, 0]
    assert narrowed(x, FP8)[5].float().isnan()
    assert narrowed(x, torch.float32) is x


@pytest.mark.parametrize("kernels", [ReferenceKernels(), TorchKernels()])
def test_attention_over_a_narrow_cache_is_that_over_what_it_holds(kernels):
    from tests.kernels.conftest import Contexts

    rows = Contexts([40, 9], 4, 2, 16, 16, torch.float32)
    work = [(0, 38, 40), (1, 8, 9)]
    narrow, wide = (torch.zeros(rows.num_blocks, 3, 2, 2, 16, 16, dtype=d)
                    for d in (FP8, torch.float32))  # fmt: skip
    for cache in (narrow, wide):
        rows.write(kernels, cache, [rows.whole(0), rows.whole(1)])
    query, batch = rows.parts(work)[0], rows.batch(work)
    found, expected = torch.empty(2, *query.shape)
    kernels.attention(query, narrow[:, 1], batch, 0.25, found)
    kernels.attention(query, narrowed(wide, FP8).float()[:, 1], batch, 0.25, expected)
    assert torch.equal(found, expected)


def logprobs(directory, **settings):
    worker = make_worker(directory, kernels="torch", **settings)
    found = []
    for plan in generation_plans(PROMPTS, 6, chunk=10, sampling=[SCORED] * len(PROMPTS)):
        result = decode_result(worker.execute(encode(plan)))
        found += [entry.logprob for entries in result.prompt_logprobs.values() for entry in entries]
    return torch.tensor(found)


@pytest.mark.parametrize("settings", [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}])
def test_prompts_are_about_as_likely(tiny_model, settings):
    exact, found = (logprobs(tiny_model("llama"), **s) for s in ({}, settings))
    assert len(found) == len(exact) == 4 + 32 + 17
    assert 0 < (found - exact).abs().mean() < 0.25  # nats; these random weights amplify any change


@pytest.mark.parametrize("flag", ["quantization", "kv_cache_dtype"])
def test_the_native_kernels_have_no_fp8(tiny_model, flag):
    with pytest.raises(InvalidRequest, match=f"{flag} fp8 needs a GPU: the native"):
        make_worker(tiny_model("llama"), kernels="native", **{flag: "fp8"})


@pytest.mark.parametrize("capability, refused", [((8, 0), True), ((8, 9), False), ((9, 0), False)])
def test_which_gpus_have_it(monkeypatch, capability, refused):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    reason = missing_for_fp8(TorchKernels(), torch.device("cuda"))
    assert (reason is not None) == refused
    assert not refused or reason == (
        "needs a GPU of compute capability 8.9 or higher, and this one has 8.0"
    )
