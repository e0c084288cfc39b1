"""What an application may be told: the flags of the command line, typed, with clear refusals."""

import dataclasses

import msgspec
import pytest

from octavo.cluster.arguments import (
    ModelArguments,
    deployment_name,
    draft_config,
    front_arguments,
    least_replicas,
    most_replicas,
    names_of,
    read_application,
    replica_arguments,
)
from octavo.cluster.cli import flags
from octavo.cluster.config import EngineConfig
from octavo.scheduler.errors import InvalidRequest

# Flags that concern the process and its terminal, the keys, and where Ray is.
NOT_OF_A_MODEL = {
    *("command", "host", "port", "executor", "address", "ray_dashboard"),
    *("api_key", "api_key_file", "admin_api_key", "ssl_certfile", "ssl_keyfile"),
    *("allowed_origins", "request_timeout", "enable_log_requests"),
}
# What only a cluster can do.
OF_A_CLUSTER = {"resources", "autoscaling", "drain_timeout", "max_surge_percent"}


def one(**arguments):
    return read_application({"models": [arguments]}).models[0]


def refusal(args):
    with pytest.raises(InvalidRequest) as caught:
        read_application(args)
    assert "\n" not in caught.value.message and " --" not in caught.value.message
    return caught.value.message


def test_a_model_has_the_flags_of_the_command_line_with_their_defaults():
    flag_defaults = vars(flags.parse(["serve"]))
    given = vars(one())
    assert set(given) == set(flag_defaults) - NOT_OF_A_MODEL | OF_A_CLUSTER
    for name in set(given) - OF_A_CLUSTER:
        assert given[name] == flag_defaults[name], name


def test_every_setting_of_an_engine_can_be_given_or_is_found_out():
    fields = {field.name for field in dataclasses.fields(EngineConfig)}
    settable = set(ModelArguments.__struct_fields__)
    assert fields - settable == {"served_model_names", "revision"}


def test_only_what_a_replica_is_made_from_is_a_reason_to_replace_it():
    plain = one(model="/m/a")
    for changes in (
        {"num_replicas": 3},
        {"autoscaling": {"max_replicas": 3}},
        {"drain_timeout": 3},
        {"max_surge_percent": 50},
        {"served_model_name": "b"},
        {"failover_timeout": 3},
        {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
        {"generation_config": "vllm"},
    ):
        changed = one(model="/m/a", **changes)
        assert replica_arguments(changed) == replica_arguments(plain), changes
    for changes in ({"max_num_seqs": 3}, {"model": "/m/b"}, {"tensor_parallel_size": 2}):
        changed = one(**{"model": "/m/a"} | changes)
        assert replica_arguments(changed) != replica_arguments(plain), changes
        assert "model" in changes or front_arguments(changed) == front_arguments(plain)
    lora = {"enable_lora": True, "lora_modules": ["sql=/adapters/sql"]}
    assert replica_arguments(one(**lora)) != replica_arguments(one())
    for changes in ({"failover_timeout": 3}, {"reasoning_parser": "qwen3"}, lora):
        assert front_arguments(one(**changes)) != front_arguments(one())


def test_an_elastic_model_has_bounds():
    asked = one(autoscaling={"min_replicas": 0, "max_replicas": 3})
    assert (least_replicas(asked), most_replicas(asked)) == (0, 3)
    assert front_arguments(asked)["scale_to_zero"]
    assert (least_replicas(one(num_replicas=2)), most_replicas(one(num_replicas=2))) == (2, 2)


def test_sizes_and_names_may_be_written_as_people_do():
    model = one(model="/m/tiny", kv_cache_memory_bytes="2GiB", served_model_name="t")
    assert model.kv_cache_memory_bytes == 2 * 2**30
    assert names_of(model) == ("t",) and draft_config(model).served_model_names == ("t",)
    assert one(kv_cache_memory_bytes=4096).kv_cache_memory_bytes == 4096
    assert names_of(one(served_model_name=["a", "b"])) == ("a", "b")


@pytest.mark.parametrize(
    ("model", "name", "deployment"),
    [
        (None, "SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "Qwen--Qwen3-0.6B"),
        ("/models/tiny/", "tiny", "tiny"),
        ("~/my model", "my model", "my-model"),
    ],
)
def test_a_model_goes_by_its_name(model, name, deployment):
    asked = one(model=model)
    assert names_of(asked) == (name,) and deployment_name(asked) == deployment


def test_several_models_each_have_their_own_settings():
    application = read_application(
        {
            "models": [{"model": "/m/a", "num_replicas": 2}, {"model": "/m/b", "block_size": 32}],
            "ingress_replicas": 3,
            "allowed_origins": ["https://a"],
            "request_timeout": 60,
            "enable_log_requests": True,
        }
    )
    a, b = application.models
    assert (a.num_replicas, a.block_size, b.num_replicas, b.block_size) == (2, 16, 1, 32)
    assert application.ingress_replicas == 3
    assert application.shared == {
        "allowed_origins": ("https://a",),
        "request_timeout": 60,
        "enable_log_requests": True,
    }


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"enable_auto_tool_choice": True}, "args.models[0]: enable_auto_tool_choice needs tool_"),
        ({"tool_call_parser": "x"}, "'x'; choose hermes, llama3_json, pythonic"),
        ({"tensor_parallel": 2}, "args.models[0] has no argument 'tensor_parallel'; did you mean"),
        ({"tensor-parallel-size": 2}, "did you mean tensor_parallel_size?"),
        ({"zzz": 2}, "there are model, served_model_name"),
        ({"block_size": "16"}, "args.models[0].block_size: expected `int`, got `str`, got '16'"),
        ({"block_size": 12}, "args.models[0]: block_size must be a power of two, got 12"),
        ({"lora_modules": ["sql=/a"]}, "args.models[0]: lora_modules needs enable_lora"),
        ({"enable_lora": True, "lora_modules": ["sql"]}, "takes name=path"),
        (
            {"enable_lora": True, "lora_modules": ["sql=here"]},
            "'sql' at 'here', which is relative to no",
        ),
        ({"enable_lora": True, "lora_modules": ["{}"]}, "takes name=path"),
        (
            {"model": "/m/sql", "enable_lora": True, "lora_modules": ["sql=/a"]},
            "an adapter that is called 'sql', as the model is",
        ),
        ({"num_replicas": 0}, "num_replicas must be at least 1, got 0"),
        ({"preemption_mode": "never"}, "got 'never'; choose auto, recompute, swap"),
        ({"placement_group_strategy": "pack"}, "got 'pack'; choose STRICT_PACK, PACK, SPREAD"),
        ({"quantization": "int3"}, "got 'int3'; choose int8, fp8"),
        ({"dtype": "int3"}, "choose auto, float32, bfloat16, float16"),
        ({"kv_cache_memory_bytes": "lots"}, "'lots' is not a size; write for example 2GiB"),
        ({"resources": {"gpu": 0}}, "args.models[0].resources"),
        ({"model": ""}, "leave it out for the embedded model"),
        ({"model": "./tiny"}, "'./tiny' is relative to no known place"),
        ({"served_model_name": "Ingress"}, "'Ingress' cannot be told from another deployment"),
        ({"autoscaling": {}}, "args.models[0].autoscaling: max_replicas is missing"),
        ({"autoscaling": {"max_replica": 2}}, "did you mean max_replicas?"),
        ({"autoscaling": {"max_replicas": 0}}, "autoscaling.max_replicas: expected `int` >= 1"),
        (
            {"autoscaling": {"max_replicas": 2, "min_replicas": 3}},
            "args.models[0]: min_replicas must not be above max_replicas (2), got 3",
        ),
        (
            {"num_replicas": 3, "autoscaling": {"max_replicas": 3}},
            "num_replicas is 3, but autoscaling decides; leave it out",
        ),
        ({"drain_timeout": -1}, "args.models[0].drain_timeout: expected `float` >= 0.0, got -1"),
        ({"max_surge_percent": 101}, "max_surge_percent: expected `int` <= 100, got 101"),
        ({"api_key": ["k"]}, "$OCTAVO_API_KEY and $OCTAVO_ADMIN_API_KEY"),
        ({"api_key_file": "/k"}, "the file there that $OCTAVO_API_KEY_FILE names"),
        ({"watermark_low": 0.5}, "watermark_low must not be above watermark_high (0.08), got 0.5"),
    ],
)
def test_a_wrong_argument_is_named_with_its_place_and_value(model, words):
    assert words in refusal({"models": [model]})


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "args: models is missing"),
        ({"models": []}, "args.models"),
        ({"model": "/m/a"}, "args has no argument 'model'; it belongs to a model: args.models[0]"),
        ({"models": [{}], "ingress_replicas": 0}, "args.ingress_replicas"),
        ({"models": [{}], "request_timeout": 0}, "args.request_timeout: expected `float` > 0"),
        ({"models": [{}], "allowed_origins": ["a"]}, "args: allowed_origins takes origins"),
        ({"models": [{}], "api_keys": ["a"]}, "$OCTAVO_API_KEY"),
        ({"models": [{}, {}]}, "args.models[1]: another model is called 'SmolLM2-135M-Instruct'"),
        (
            {"models": [{"model": "a/b"}, {"model": "/m/x", "served_model_name": "a--b"}]},
            "args.models[1]: 'a--b' cannot be told from another deployment",
        ),
    ],
)
def test_what_is_wrong_with_the_whole_is_one_sentence(args, words):
    assert words in refusal(args)


def test_there_is_a_schema_for_others_to_compare_with():
    properties = msgspec.json.schema(ModelArguments)["$defs"]["ModelArguments"]["properties"]
    assert set(properties) == set(ModelArguments.__struct_fields__)
