"""Adapters as clients see them: models by other names, each with the answers of its own weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.cluster.api.app import create_shared_app
from octavo.cluster.api.front import Front
from octavo.cluster.api.settings import FrontSettings
from octavo.cluster.cli import flags
from octavo.cluster.config import EngineConfig
from octavo.cluster.offline.llm import LLM
from octavo.cluster.planning import plan_model
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.lora_modules import paths
from tests.adapters import greedy, make_adapter, merge
from tests.cluster.calls import chat, error_of
from tests.cluster.case_server import Server
from tests.cluster.scripted import TOKENIZER, ScriptedEngine, says
from tests.cluster.serving import MODEL, Switch, serve_engine, settings_for, tiny_engine
from tests.conftest import TinyModel

NAMES = (MODEL, "sql", "chat/short")
PROMPTS = [[7 * (number + place) % 400 + 3 for place in range(40)] for number in range(3)]
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def adapters(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    sql = make_adapter(folder / "sql", tiny_model(), seed=1)
    short = make_adapter(folder / "short", tiny_model(), targets=("v_proj", "o_proj"), seed=2)
    return {"sql": sql, "chat/short": short}


@pytest.fixture(scope="module")
def served(tiny_model: TinyModel, adapters: dict[str, Path]) -> Iterator[Server]:
    path = tiny_model()
    engine = tiny_engine(path, lora_modules=[f"{name}={at}" for name, at in adapters.items()])
    settings = settings_for(path, adapters={"sql": None, "chat/short": "some/base"})
    with serve_engine(engine, settings) as url, contextlib.closing(Server(url)) as server:
        yield server


@pytest.fixture(scope="module")
def expected(
    tiny_model: TinyModel, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[list[int]]]:
    """What transformers says, with each adapter merged into the model's weights."""
    folder = tmp_path_factory.mktemp("merged")
    models = {MODEL: tiny_model()}
    for number, (name, adapter) in enumerate(adapters.items()):
        models[name] = merge(folder / str(number), tiny_model(), adapter)
    return {name: greedy(path, PROMPTS, NEW_TOKENS) for name, path in models.items()}


def ask(server: Server, model: str, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": NEW_TOKENS}
    whole = {"ignore_eos": True, "skip_special_tokens": False}
    answer = server.post("completions", {**body, **whole, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["model"] == model
    return found


def cached(answer: dict[str, Any]) -> int:
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_all_names_side_by_side_cold_and_warm(
    served: Server, expected: dict[str, list[list[int]]]
) -> None:
    assert len({str(answers) for answers in expected.values()}) == 3
    texts = {
        name: [served_text(served, tokens) for tokens in answers]
        for name, answers in expected.items()
    }
    calls = [(name, number) for name in NAMES for number in range(len(PROMPTS))]
    for warm in (False, True):
        with ThreadPoolExecutor(len(calls)) as pool:
            answers = list(pool.map(lambda call: ask(served, call[0], PROMPTS[call[1]]), calls))
        for (name, number), answer in zip(calls, answers, strict=True):
            assert answer["choices"][0]["text"] == texts[name][number], (name, number)
            assert cached(answer) == (32 if warm else 0)


def served_text(server: Server, tokens: list[int]) -> str:
    answer = server.http.post("/detokenize", json={"tokens": tokens})
    text: str = answer.json()["prompt"]
    return text


def test_nothing_that_one_computed_is_found_by_another(served: Server) -> None:
    prompt = [9] * 33
    hits = [cached(ask(served, name, prompt)) for name in (*NAMES, *NAMES)]
    assert hits == [0, 0, 0, 32, 32, 32]


def test_models_are_listed_with_what_they_belong_to(served: Server) -> None:
    listed = served.http.get("/v1/models").json()["data"]
    assert [(each["id"], each.get("parent")) for each in listed] == [
        (MODEL, None),
        ("sql", MODEL),
        ("chat/short", "some/base"),
    ]
    assert served.http.get("/v1/models/chat/short").json()["parent"] == "some/base"
    assert served.http.get("/").json()["models"] == list(NAMES)


def test_every_endpoint_takes_an_adapters_name(served: Server) -> None:
    plain, adapted = (
        chat(served.http, model=name, temperature=0, max_tokens=8).json() for name in NAMES[:2]
    )
    assert (plain["model"], adapted["model"]) == NAMES[:2]
    texts = [each["choices"][0]["message"]["content"] for each in (plain, adapted)]
    assert texts[0] != texts[1]
    body = {"model": "sql", "input": "Hello", "temperature": 0, "max_output_tokens": 8}
    answer = served.http.post("/v1/responses", json=body).json()
    assert answer["model"] == "sql"
    assert answer["output"][0]["content"][0]["text"] == texts[1]
    chunks = served.stream(model="sql", max_tokens=8)
    assert {chunk["model"] for chunk in chunks} == {"sql"}
    assert served.http.post("/tokenize", json={"model": "sql", "prompt": "x"}).status_code == 200


def test_an_unknown_name_is_told_the_adapters_too(served: Server) -> None:
    answer = served.post("completions", {"model": "nosql", "prompt": "x"})
    assert "'sql'" in error_of(answer, 404, "model")


def test_the_name_chooses_among_models_with_adapters(wire: tuple[Switch, str]) -> None:
    switch, url = wire
    engines = ScriptedEngine(says("one")), ScriptedEngine(says("two"))
    fronts = [
        Front(engine, FrontSettings("", (name,), adapters={f"{name}-sql": None}), TOKENIZER)
        for engine, name in zip(engines, ("a", "b"), strict=True)
    ]
    switch.app = create_shared_app(fronts)
    with httpx.Client(base_url=url, timeout=20) as http:
        assert chat(http, model="b-sql").json()["choices"][0]["message"]["content"] == "two"
    same = Front(engines[1], FrontSettings("", ("b",), adapters={"a": None}), TOKENIZER)
    with pytest.raises(InvalidRequest, match="two models are called 'a'"):
        create_shared_app([fronts[0], same])


def test_the_offline_api_takes_an_adapters_name(
    tiny_model: TinyModel, adapters: dict[str, Path], expected: dict[str, list[list[int]]]
) -> None:
    settings: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 64, "num_threads": 1}
    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    modules = [f"sql={adapters['sql']}"]
    with LLM(tiny_model(), enable_lora=True, lora_modules=modules, **settings) as llm:
        for name, adapter in ((MODEL, None), ("sql", "sql")):
            outputs = llm.generate(PROMPTS, sampling, use_tqdm=False, lora_request=adapter)
            assert [output.outputs[0].token_ids for output in outputs] == expected[name]
        with pytest.raises(InvalidRequest, match="no adapter 'x'; lora_modules has sql"):
            llm.chat([{"role": "user", "content": "x"}], lora_request="x")


def test_adapters_are_refused_before_anything_is_started(
    tiny_model: TinyModel, adapters: dict[str, Path], tmp_path: Path
) -> None:
    def plan(*given: str) -> EngineConfig:
        return plan_model(flags.parse(["serve", str(tiny_model()), *given]), "cpu").config

    whole = plan("--enable-lora", "--lora-modules", f"sql={adapters['sql']}", "--max-loras", "3")
    assert whole.adapters == ("sql",)
    assert (whole.scheduler_config(64).adapters, whole.scheduler_config(64).max_loras) == (
        ("sql",),
        3,
    )
    assert paths(whole.worker_config().lora_modules or ()) == {"sql": str(adapters["sql"])}
    sql = f"sql={adapters['sql']}"
    with pytest.raises(InvalidRequest, match="needs --enable-lora"):
        plan("--lora-modules", sql)
    with pytest.raises(InvalidRequest, match="rank 4.*--max-lora-rank 2"):
        plan("--enable-lora", "--lora-modules", sql, "--max-lora-rank", "2")
    with pytest.raises(InvalidRequest, match="holds no adapter_config.json"):
        plan("--enable-lora", "--lora-modules", f"sql={tmp_path}")
    with pytest.raises(InvalidRequest, match="is called 'sql', as the model is"):
        plan("--enable-lora", "--lora-modules", sql, "--served-model-name", "sql")
