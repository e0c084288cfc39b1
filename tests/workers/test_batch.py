"""Index arrays against a construction token by token."""

from __future__ import annotations

import random

import pytest
import torch

from octavo.scheduler.mirror import Row
from octavo.scheduler.plan import Replace, Work
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.batch import Batcher

CPU = torch.device("cpu")


def brute_force(work: list[Work], rows: dict[int, Row], size: int) -> dict[str, list[int]]:
    """Rows that compute nothing have no part in the pass."""
    found: dict[str, list[int]] = {
        "ids": [],
        "positions": [],
        "qo_indptr": [0],
        "kv_indptr": [0],
        "kv_indices": [],
        "kv_last_page_len": [],
        "slots": [],
    }
    for item in work:
        if item.count == 0:
            continue
        row = rows[item.row]
        for position in range(item.start, item.start + item.count):
            found["ids"].append(row.tokens[position])
            found["positions"].append(position)
            found["slots"].append(row.table[position // size] * size + position % size)
        length = item.start + item.count
        blocks = [row.table[i] for i in range(len(row.table)) if i * size < length]
        found["kv_indices"] += blocks
        found["kv_last_page_len"].append(length - (len(blocks) - 1) * size)
        found["qo_indptr"].append(found["qo_indptr"][-1] + item.count)
        found["kv_indptr"].append(found["kv_indptr"][-1] + len(blocks))
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [1, 4, 16])
def test_random_lives_of_rows(seed, size):
    rng = random.Random(seed)
    batcher = Batcher(size, CPU)
    rows = {}
    for _ in range(60):
        for number in [n for n in rows if rng.random() < 0.1]:
            del rows[number]
        while len(rows) < 6:
            length = rng.randint(1, 90)
            number = rng.choice([n for n in range(40) if n not in rows])
            tokens = [rng.randrange(1000) for _ in range(length)]
            rows[number] = Row(tokens, length, [], rng.randrange(length), SamplingParams())
        replaced = []
        for number in rng.sample(sorted(rows), rng.randint(0, len(rows))):
            if table := rows[number].table:
                place = rng.randrange(len(table))
                table[place] = rng.randrange(1, 10000)
                replaced.append(Replace(number, place, table[place]))
        batcher.replace(replaced, rows)
        if rng.random() < 0.2:
            continue  # a step without work
        work = []
        for number in rng.sample(sorted(rows), rng.randint(1, len(rows))):
            row = rows[number]
            if row.computed == len(row.tokens):
                row.tokens.append(rng.randrange(1000))
            count = rng.randint(1, len(row.tokens) - row.computed)
            while len(row.table) * size < row.computed + count + rng.choice([0, 0, 3 * size]):
                row.table.append(rng.randrange(1, 10000))
            work.append(Work(number, row.computed, count, False))
            if rng.random() < 0.2:
                child = max(rows) + 1
                rows[child] = row.fork(0)
                rows[child].computed += count
                work.append(Work(child, rows[child].computed, 0, True))
        step = batcher.build(work, rows)
        for name, expected in brute_force(work, rows, size).items():
            tensor = getattr(step, name) if hasattr(step, name) else getattr(step.batch, name)
            assert tensor.dtype == torch.int32
            assert tensor.tolist() == expected, name
        for item in work:
            rows[item.row].computed += item.count


def test_a_row_number_born_again_brings_its_own_table():
    batcher = Batcher(4, CPU)
    work = [Work(2, 4, 1, True)]
    for table in ([9, 8, 7], [3, 2], [5, 6, 1]):
        row = Row([1, 2, 3, 4, 5], 5, table, 4, SamplingParams())
        assert batcher.build(work, {2: row}).batch.kv_indices.tolist() == table[:2]
