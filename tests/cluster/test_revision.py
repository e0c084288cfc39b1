"""A model's revision: the same wherever it lies, another for other weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from octavo.cluster.checkpoints.revision import model_revision
from tests.adapters import make_adapter
from tests.conftest import TinyModel


def copied(model: Path, to: Path) -> Path:
    shutil.copytree(model, to)
    return to


def test_a_copy_has_the_same_revision(tiny_model: TinyModel, tmp_path: Path) -> None:
    assert model_revision(copied(tiny_model(), tmp_path / "b")) == model_revision(tiny_model())
    assert len(model_revision(tiny_model())) == 32


def test_other_weights_of_the_same_shape_have_another(tiny_model: TinyModel) -> None:
    names = {model_revision(tiny_model(seed=seed)) for seed in (0, 1)}
    assert len(names | {model_revision(tiny_model(kv_heads=2))}) == 3


def test_what_is_no_weight_changes_nothing(tiny_model: TinyModel, tmp_path: Path) -> None:
    model = copied(tiny_model(), tmp_path / "m")
    before = model_revision(model)
    (model / "README.md").write_text("new")
    (model / "model.safetensors").touch()
    assert model_revision(model) == before
    config = model / "config.json"
    config.write_text(config.read_text().replace("1e-06", "1e-05"))
    assert model_revision(model) != before


def test_adapters_and_their_names_are_part_of_it(tiny_model: TinyModel, tmp_path: Path) -> None:
    model = tiny_model()
    first, other = (
        str(make_adapter(tmp_path / str(seed), model, targets=("q_proj",), seed=seed))
        for seed in (0, 1)
    )
    moved = str(copied(Path(first), tmp_path / "moved"))
    assert model_revision(model, {"a": first}) == model_revision(model, {"a": moved})
    found = [{"a": first}, {"a": other}, {"b": first}, {"a": first, "b": other}]
    found.append({"a": other, "b": first})
    assert len({model_revision(model), *(model_revision(model, each) for each in found)}) == 6


def test_broken_and_missing_files_are_for_others_to_report(tmp_path: Path) -> None:
    empty = model_revision(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 8 + b"short")
    assert model_revision(tmp_path) != empty
    (tmp_path / "other.safetensors").mkdir()
    assert len(model_revision(tmp_path)) == 32
