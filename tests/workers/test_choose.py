"""Which token is drawn: against a plain construction, and against probability itself."""

from __future__ import annotations

import pytest
import torch

from octavo.scheduler.sampling import SamplingParams
from octavo.workers.choose import choose_despite_faults, choose_random, is_greedy
from octavo.workers.draws import uniforms

VOCABULARY = 400
FILTERS = [
    {"top_k": 5},
    {"top_k": 128},
    {"top_k": 200},
    {"top_p": 0.3},
    {"top_p": 0.95},
    {"top_p": 0.9999},
    {"min_p": 0.05},
    {"min_p": 1e-6},
    {"top_k": 40, "top_p": 0.8},
    {"top_k": 300, "top_p": 0.999},
    {"top_p": 0.9, "min_p": 0.1},
    {"top_k": 150, "top_p": 0.99, "min_p": 0.001},
    {"top_k": 1000},
]


def params(**changes):
    return SamplingParams(**({"seed": 1} | changes))


def kept_by_hand(logits: torch.Tensor, sampling: SamplingParams) -> dict[int, float]:
    """Probabilities of the tokens that survive, likeliest first, in plain Python."""
    scaled = (logits.double() / sampling.temperature).tolist()
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    weights = torch.tensor([scaled[token] for token in order]).double().softmax(0).tolist()
    if sampling.top_k > 0:
        weights = weights[: sampling.top_k]
    total = sum(weights)
    kept, before = [], 0.0
    for token, weight in zip(order, weights, strict=False):
        if before >= sampling.top_p * total or weight < sampling.min_p * weights[0]:
            break
        kept.append((token, weight))
        before += weight
    return {token: weight / before for token, weight in kept}


def draw_by_hand(logits: torch.Tensor, sampling: SamplingParams, position: int) -> int:
    (draw,) = uniforms([sampling.seed or 0], [position])
    total = 0.0
    for token, probability in kept_by_hand(logits, sampling).items():
        total += probability
        if draw < total:
            return token
    raise AssertionError("probabilities sum to one")


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_filtered_draws_equal_a_construction_by_hand(filters, temperature):
    torch.manual_seed(3)
    logits = torch.randn(40, VOCABULARY) * 3
    sampling = [params(seed=row, temperature=temperature, **filters) for row in range(40)]
    chosen = choose_random(logits, sampling, range(40)).tolist()
    assert chosen == [draw_by_hand(logits[i], sampling[i], i) for i in range(40)]
    assert len(set(chosen)) > 10


@pytest.mark.parametrize("step", [None, 0.5], ids=["all different", "many ties"])
@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_the_likeliest_candidates_decide_as_a_full_sort_does(spread, step):
    torch.manual_seed(1)
    rows = 300
    logits = torch.randn(rows, 2000) * spread
    if step:
        logits = (logits / step).round() * step
    sampling = [
        params(seed=i, temperature=0.5 + (i % 5) / 4, **FILTERS[i % len(FILTERS)])
        for i in range(rows)
    ]
    whole = choose_random(logits, sampling, range(rows), candidates=())
    for candidates in ((2,), (20, 300), (128,), (128, 5000)):
        assert torch.equal(choose_random(logits, sampling, range(rows), candidates), whole)


def test_ties_beyond_the_candidates_are_broken_by_token_id():
    logits = torch.zeros(1, 1000)
    chosen = [
        choose_random(logits, [params(top_k=300)], [position]).item() for position in range(200)
    ]
    assert max(chosen) < 300
    assert len(set(chosen)) > 100


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 8, "top_p": 0.9}]
)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_frequencies_over_many_positions_fit_the_distribution(filters, temperature):
    torch.manual_seed(5)
    count = 20000
    logits = torch.randn(16) * 2
    sampling = params(seed=99, temperature=temperature, **filters)
    chosen = choose_random(logits.expand(count, -1), [sampling] * count, range(count))
    found = torch.bincount(chosen, minlength=16).double()
    expected = torch.zeros(16, dtype=torch.float64)
    for token, probability in kept_by_hand(logits, sampling).items():
        expected[token] = probability * count
    assert (found[expected == 0] == 0).all()
    live = expected > 0
    statistic = ((found - expected)[live] ** 2 / expected[live]).sum()
    freedom = int(live.sum()) - 1
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5 + 6  # beyond the 0.1 % point


def test_a_row_draws_the_same_alone_and_among_others():
    torch.manual_seed(2)
    rows = 60
    logits = torch.randn(rows, 5000) * 2
    sampling = [params(seed=i, **([{}, *FILTERS][i % 14])) for i in range(rows)]
    together = choose_random(logits, sampling, range(rows)).tolist()
    alone = [choose_random(logits[i : i + 1], [sampling[i]], [i]).item() for i in range(rows)]
    shuffled = choose_random(logits.flip(0), sampling[::-1], range(rows)[::-1]).tolist()
    assert together == alone == shuffled[::-1]


def test_seed_and_position_both_matter():
    logits = torch.zeros(100, 1000)
    by_position = choose_random(logits, [params()] * 100, range(100))
    by_seed = choose_random(logits, [params(seed=i) for i in range(100)], [0] * 100)
    assert len(by_position.unique()) > 80
    assert len(by_seed.unique()) > 80


def test_forbidden_tokens_are_never_drawn():
    logits = torch.zeros(2000, 8)
    logits[:, [0, 3, 7]] = float("-inf")
    for filters in ({}, {"top_p": 0.99}, {"min_p": 0.5}):
        chosen = choose_random(logits, [params(**filters)] * 2000, range(2000))
        assert set(chosen.tolist()) == {1, 2, 4, 5, 6}


def test_few_permitted_tokens_need_no_further_look():
    """As a grammar leaves them: the likeliest candidates hold all that may be drawn."""
    torch.manual_seed(7)
    logits = torch.full((60, 1000), float("-inf"))
    logits[:, [5, 400, 777]] = torch.randn(60, 3)
    sampling = [params(seed=i, **FILTERS[i % len(FILTERS)]) for i in range(60)]
    whole = choose_random(logits, sampling, range(60), candidates=())
    assert torch.equal(choose_random(logits, sampling, range(60), candidates=(8,)), whole)
    assert set(whole.tolist()) == {5, 400, 777}


def test_which_parameters_are_greedy():
    assert all(
        is_greedy(params(**changes))
        for changes in ({"temperature": 0}, {"top_k": 1}, {"top_p": 0}, {"temperature": 1e-9})
    )
    assert not is_greedy(params(temperature=0.01))
    cold = choose_random(torch.tensor([[1.0, 3.0, 2.9]]), [params(temperature=2e-5)], [0])
    assert cold.item() == 1


def test_faulty_rows_get_their_best_number():
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[1.0, nan, 2.0], [nan, nan, nan], [-inf, -inf, -inf], [inf, 0.0, 1.0]])
    assert choose_despite_faults(logits).tolist() == [2, 0, 0, 2]
