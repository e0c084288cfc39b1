"""The command line without a server: help, mistakes, and what they cost."""

import socket

import pytest

from octavo.cluster.api.settings import Address
from octavo.cluster.api.tls import Certificate
from octavo.cluster.checkpoints.revision import model_revision
from octavo.cluster.cli import flags
from octavo.cluster.cli import main as cli
from octavo.cluster.cli.plan_deployment import plan_deployment
from octavo.cluster.config import EngineConfig
from octavo.cluster.distributed.ray_cluster import RayCluster
from octavo.scheduler.errors import InvalidRequest

VLLM_FLAGS = [
    "--host",
    "--port",
    "--served-model-name",
    "--tensor-parallel-size",
    "-tp",
    "--dtype",
    "--kv-cache-dtype",
    "--quantization",
    "--device",
    "--max-model-len",
    "--block-size",
    "--num-gpu-blocks-override",
    "--kv-cache-memory-bytes",
    "--gpu-memory-utilization",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--no-enable-prefix-caching",
    "--swap-space",
    "--preemption-mode",
    "--num-replicas",
    "--api-key",
    "--allowed-origins",
    "--ssl-certfile",
    "--ssl-keyfile",
    "--enable-log-requests",
    "--seed",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "--reasoning-parser",
    "--generation-config",
    "--executor",
]


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


OWN_FLAGS = [
    "--allocation",
    "--watermark-low",
    "--watermark-high",
    "--admin-api-key",
    "--api-key-file",
    "--request-timeout",
    "--failover-timeout",
]


def run(capsys, *argv):
    """Exit code and what was said."""
    try:
        code = cli.main(argv)
    except SystemExit as leave:
        code = leave.code
    said = capsys.readouterr()
    return code, said.out + said.err


def refused(capsys, *argv):
    """The one sentence that a mistake gives."""
    code, said = run(capsys, "serve", *argv)
    assert code == 2
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert "error:" in last
    return last


def test_help_explains_every_flag(capsys):
    code, said = run(capsys, "serve", "--help")
    assert code == 0
    for flag in [*VLLM_FLAGS, *OWN_FLAGS]:
        assert flag in said
    assert "turn prefix caching off" in " ".join(said.split())
    for group in ("front", "access", "model", "chat", "cache", "scheduling", "machines"):
        assert f"\n{group}:" in said


def test_version(capsys):
    code, said = run(capsys, "--version")
    assert code == 0 and said.startswith("octavo ")


def test_defaults_and_spellings():
    arguments = flags.parse(["serve"])
    assert arguments.model is None and arguments.port == 8000 and arguments.executor == "ray"
    arguments = flags.parse(
        ["serve", "m", "-tp", "2", "--max_model_len=64", "--kv-cache-memory-bytes", "2GiB"]
        + ["--no-enable-prefix-caching", "--api-key", "a", "--api-key", "b"]
    )
    assert arguments.tensor_parallel_size == 2 and arguments.max_model_len == 64
    assert arguments.kv_cache_memory_bytes == 2 * 2**30
    assert not arguments.enable_prefix_caching and arguments.api_key == ["a", "b"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--port", "70000"], ["--port", "70000", "between 1 and 65535"]),
        (["--port", "http"], ["--port", "http"]),
        (["--kv-cache-memory-bytes", "lots"], ["--kv-cache-memory-bytes", "lots", "2GiB"]),
        (["--dtype", "int3"], ["--dtype", "int3", "bfloat16"]),
        (["--quantization", "int3"], ["--quantization", "int3", "int8"]),
        (["--max-num-seqs", "many"], ["--max-num-seqs", "many"]),
        (["--no-such-flag"], ["--no-such-flag"]),
        (["--preemption-mode", "never"], ["--preemption-mode", "never", "recompute"]),
        (["--allocation", "free"], ["--allocation", "free", "oracle"]),
        (["--swap-space", "4GiB"], ["--swap-space", "4GiB"]),
        (["--tool-call-parser", "morse"], ["--tool-call-parser", "morse", "llama3_json"]),
        (["--reasoning-parser", "none"], ["--reasoning-parser", "none", "deepseek_r1"]),
    ],
)
def test_a_wrong_flag_is_named(capsys, argv, words):
    said = refused(capsys, *argv)
    assert all(word in said for word in words)


def test_no_command_is_a_mistake(capsys):
    code, said = run(capsys)
    assert code == 2 and "COMMAND" in said


def test_a_busy_port_is_refused_before_anything_starts(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        said = refused(capsys, "/no/such/model", "--port", str(port))
    assert f"127.0.0.1:{port}" in said and "already in use" in said


def test_a_missing_model_is_refused(capsys, free_port):
    said = refused(capsys, "/no/such/model", "--port", free_port)
    assert "there is no directory /no/such/model" in said


def test_a_directory_without_a_model_is_refused(capsys, free_port, tmp_path):
    said = refused(capsys, str(tmp_path), "--port", free_port)
    assert "config.json" in said


def test_a_setting_out_of_bounds_is_refused(capsys, free_port, tmp_path):
    said = refused(capsys, str(tmp_path), "--port", free_port, "--block-size", "12")
    assert "--block-size" in said and "12" in said


def test_a_degree_that_does_not_divide_is_refused(capsys, free_port, tiny_model):
    said = refused(capsys, str(tiny_model()), "--port", free_port, "-tp", "3")
    assert "--tensor-parallel-size 3 does not divide" in said


def test_a_length_the_model_lacks_is_refused(capsys, free_port, tiny_model):
    said = refused(capsys, str(tiny_model()), "--port", free_port, "--max-model-len", "99999999")
    assert "--max-model-len" in said and "99999999" in said


def test_the_local_executor_runs_one_rank(capsys, free_port, tiny_model):
    said = refused(capsys, str(tiny_model()), "--port", free_port, "--executor=local", "-tp", "2")
    assert "--executor local runs one rank" in said


def test_a_gpu_that_is_not_there_is_refused(capsys, free_port, tiny_model):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    said = refused(capsys, str(tiny_model()), "--port", free_port, "--device", "cuda")
    assert "--device cuda: no GPU" in said


def test_keys_come_from_the_flag_or_else_from_the_environment(monkeypatch, tiny_model):
    monkeypatch.setenv("OCTAVO_API_KEY", "from-env")
    plain = plan_deployment(flags.parse(["serve", str(tiny_model())]))
    given = plan_deployment(flags.parse(["serve", str(tiny_model()), "--api-key", "k"]))
    assert plain.settings.api_keys == ("from-env",) and given.settings.api_keys == ("k",)


def test_the_memory_flags_reach_the_settings(tiny_model):
    given = ["--swap-space", "0.5", "--preemption-mode", "swap", "--allocation", "oracle"]
    marks = ["--watermark-low", "0.01", "--watermark-high", "0.02"]
    config = plan_deployment(flags.parse(["serve", str(tiny_model()), *given, *marks])).config
    assert (config.swap_space, config.preemption_mode, config.allocation) == (0.5, "swap", "oracle")
    assert (config.watermark_low, config.watermark_high) == (0.01, 0.02)
    plain = plan_deployment(flags.parse(["serve", str(tiny_model())])).config
    assert (plain.swap_space, plain.preemption_mode, plain.allocation) == (None, "auto", "paged")
    assert plain.revision == model_revision(tiny_model()) == config.revision


def test_the_quantization_reaches_the_workers_and_names_other_content(tiny_model):
    model = str(tiny_model())
    given = plan_deployment(flags.parse(["serve", model, "-q", "int8"])).config
    plain = plan_deployment(flags.parse(["serve", model])).config
    assert given.worker_config().quantization == "int8"
    assert plain.worker_config().quantization is None
    assert given.scheduler_config(64).revision != plain.scheduler_config(64).revision


def test_a_watermark_that_is_wrong_is_refused(capsys, free_port, tiny_model):
    said = refused(capsys, str(tiny_model()), "--port", free_port, "--watermark-low", "0.5")
    assert "--watermark-low" in said and "--watermark-high (0.08)" in said and "0.5" in said


def test_the_admins_key_is_another_and_none_is_empty(monkeypatch, capsys, free_port, tiny_model):
    model = str(tiny_model())
    assert plan_deployment(flags.parse(["serve", model])).settings.admin_api_key is None
    monkeypatch.setenv("OCTAVO_ADMIN_API_KEY", "from-env")
    settings = plan_deployment(flags.parse(["serve", model])).settings
    assert settings.admin_api_key == "from-env" and "from-env" not in repr(settings)
    given = plan_deployment(flags.parse(["serve", model, "--admin-api-key", "k"])).settings
    assert (given.admin_api_key, given.api_keys) == ("k", ())
    said = refused(capsys, model, "--port", free_port, "--api-key", "from-env")
    assert "--admin-api-key must differ from every --api-key" in said
    for flag in ("--api-key", "--admin-api-key"):
        assert flag in refused(capsys, model, "--port", free_port, flag, "")


def test_how_long_a_request_may_wait_for_another_replica(capsys, free_port, tiny_model):
    model = str(tiny_model())
    assert plan_deployment(flags.parse(["serve", model])).settings.failover_timeout == 60
    given = flags.parse(["serve", model, "--failover-timeout", "1.5"])
    assert plan_deployment(given).settings.failover_timeout == 1.5
    for wrong in ("-1", "inf", "nan"):
        said = refused(capsys, model, "--port", free_port, f"--failover-timeout={wrong}")
        assert (
            f"--failover-timeout must be a number of seconds, 0 or more, got {float(wrong)}" in said
        )


def test_how_a_model_chats(capsys, free_port, tiny_model):
    model = str(tiny_model())
    plain = plan_deployment(flags.parse(["serve", model])).settings
    assert (plain.tool_call_parser, plain.reasoning_parser) == (None, None)
    assert (plain.enable_auto_tool_choice, plain.generation_config) == (False, "auto")
    asked = ["--tool-call-parser=hermes", "--reasoning-parser=qwen3", "--generation-config=vllm"]
    given = plan_deployment(flags.parse(["serve", model, "--enable-auto-tool-choice", *asked]))
    settings = given.settings
    assert (settings.tool_call_parser, settings.reasoning_parser) == ("hermes", "qwen3")
    assert (settings.enable_auto_tool_choice, settings.generation_config) == (True, "vllm")
    said = refused(capsys, model, "--port", free_port, "--enable-auto-tool-choice")
    assert "needs --tool-call-parser" in said and "hermes" in said


def test_who_may_call_reaches_the_settings(tiny_model, tmp_path, monkeypatch):
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    monkeypatch.chdir(tmp_path)
    model = str(tiny_model())
    plain = plan_deployment(flags.parse(["serve", model]))
    assert not plain.settings.asks_for_key and plain.settings.allowed_origins == ()
    assert plain.settings.request_timeout is None and not plain.settings.enable_log_requests
    assert plain.address == Address("127.0.0.1", 8000)
    given = ["--api-key-file", "keys", "--allowed-origins", "https://a", "https://b:1"]
    more = ["--request-timeout", "2.5", "--enable-log-requests"]
    settings = plan_deployment(flags.parse(["serve", model, *given, *more])).settings
    assert (settings.api_key_file, settings.asks_for_key) == (str(keys), True)
    assert settings.allowed_origins == ("https://a", "https://b:1")
    assert (settings.request_timeout, settings.enable_log_requests) == (2.5, True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--api-key-file", "/no/such"], ["--api-key-file /no/such cannot be read: no such file"]),
        (["--allowed-origins", "a.example"], ["--allowed-origins takes", "'a.example'"]),
        (["--request-timeout", "0"], ["--request-timeout must be", "got 0"]),
        (["--ssl-keyfile", "/k"], ["--ssl-keyfile needs --ssl-certfile"]),
        (["--ssl-certfile", "/no/such"], ["--ssl-certfile /no/such cannot be read"]),
    ],
)
def test_a_wrong_way_to_say_who_may_call_is_named(capsys, free_port, tiny_model, argv, words):
    said = refused(capsys, str(tiny_model()), "--port", free_port, *argv)
    assert all(word in said for word in words)


def test_the_url_shown_can_be_reached_from_this_machine():
    assert Address("0.0.0.0", 80).url == "http://127.0.0.1:80"
    assert Address("::1", 80).url == "http://[::1]:80"
    assert Address("10.0.0.5", 8000).url == "http://10.0.0.5:8000"
    assert Address("::", 443, Certificate("c", "k")).url == "https://127.0.0.1:443"


def test_a_cluster_that_is_not_there_is_refused_at_once():
    with pytest.raises(InvalidRequest, match="there is no Ray cluster at --address 127.0.0.1:1"):
        RayCluster("127.0.0.1:1", dashboard=False).start(
            EngineConfig(model="/none", served_model_names=("none",))
        )
