"""What `Planner` calls is there in FlashInfer, by the names it uses. They are read from its source,
which need not be importable: `OCTAVO_FLASHINFER` may name the folder `flashinfer` of a wheel."""

import ast
import inspect
import os
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.kernels.cuda import twin

ROOT = Path(__file__).parents[3]
WRAPPERS = ["BatchPrefillWithPagedKVCacheWrapper", "BatchDecodeWithPagedKVCacheWrapper"]
FILES = {WRAPPERS[0]: "prefill.py", WRAPPERS[1]: "decode.py"}


@pytest.fixture(scope="module")
def package():
    if named := os.environ.get("OCTAVO_FLASHINFER"):
        return Path(named)
    spec = find_spec("flashinfer")
    if spec is None or spec.origin is None:
        pytest.skip("flashinfer is not installed")
    return Path(spec.origin).parent


def functions(nodes):
    """Functions by name; of overloads, the last, which is the one that is called."""
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}


def positional(function):
    return [a.arg for a in function.args.posonlyargs + function.args.args]


def test_it_is_the_version_that_we_pin(package):
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (built,) = re.findall(r'__version__ = "(.+)"', (package / "_build_meta.py").read_text())
    assert f"flashinfer-python=={built}" in pins["cuda"]


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers(package, name):
    tree = ast.parse((package / FILES[name]).read_text())
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    methods = functions(found.body)
    for method in ("__init__", "plan", "run", "reset_workspace_buffer"):
        if not hasattr(getattr(twin, name), method):
            continue
        theirs = methods[method]
        ours = list(inspect.signature(getattr(getattr(twin, name), method)).parameters.values())
        given = [p.name for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positional(theirs)[: len(given)] == given, method
        keywords = {p.name for p in ours if p.kind is p.KEYWORD_ONLY}
        known = {*positional(theirs), *(a.arg for a in theirs.args.kwonlyargs)}
        if theirs.args.kwarg is not None:  # handed on whole
            known |= {a.arg for a in methods["_plan_impl"].args.kwonlyargs}
        assert keywords <= known, f"{method} lacks {keywords - known}"


def test_the_merge(package):
    merge = functions(ast.parse((package / "cascade.py").read_text()).body)["merge_state_in_place"]
    ours = list(inspect.signature(twin.merge_state_in_place).parameters)
    assert positional(merge)[: len(ours)] == ours
    assert len(merge.args.defaults) >= len(positional(merge)) - len(ours)


def test_they_are_the_packages_own(package):
    exported = (package / "__init__.py").read_text()
    for name in (*WRAPPERS, "merge_state_in_place"):
        assert f" {name}" in exported


def test_random_numbers_still_depend_on_the_place_in_a_batch(package):
    """Why we sample ourselves: the day they do not, `flashinfer.sampling` is worth a look."""
    (header,) = package.rglob("include/flashinfer/sampling.cuh")
    assert "curand_init(philox_seed, bx, philox_offset" in header.read_text()
