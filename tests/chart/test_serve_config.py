"""What Serve is told: the app's own parser and Ray's own schema take it, and nothing is left to be added later."""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from llm_ray.config import DeploymentConfig, EngineConfig, ServerConfig, parse
from llm_ray.errors import ConfigError
from tests.support.chart import CI_VALUES, Objects, render
from tests.support.kuberay import serve_config

SECTIONS = {"engine": EngineConfig, "server": ServerConfig, "deployment": DeploymentConfig}
SERVE = {"autoscaling": {"mode": "serve"}}
TP_8 = {"engine": {"tensorParallelSize": 8}}
CASES: dict[str, Path | None] = {"defaults": None, **{path.stem: path for path in CI_VALUES}}


def config_of(objects: Objects) -> dict[str, Any]:
    [owner] = [obj for obj in objects if obj["kind"] in ("RayCluster", "RayService")]
    return serve_config(owner, objects.all("ConfigMap"))


def args_of(values: dict[str, Any] | Path | None = None, **options: Any) -> dict[str, Any]:
    [application] = config_of(render(values, **options))["applications"]
    return dict(application["args"])


@pytest.mark.parametrize("case", CASES)
def test_ray_s_schema_takes_the_document(case):
    config = config_of(render(CASES[case]))
    taken = ServeDeploySchema.model_validate(config)
    [application] = taken.applications
    assert (application.name, application.route_prefix) == ("llm", "/")
    assert application.import_path == "llm_ray.serve:build"
    assert config.keys() <= ServeDeploySchema.model_fields.keys(), "Serve ignores keys that it does not know"
    for part, model in (("http_options", taken.http_options), ("grpc_options", taken.grpc_options)):
        assert config[part].keys() <= type(model).model_fields.keys()


@pytest.mark.parametrize("case", CASES)
def test_the_app_takes_every_setting_and_is_given_every_one(case):
    args = args_of(CASES[case])
    assert args.keys() == SECTIONS.keys()
    stages = args["engine"]["pipeline_parallel_size"]
    if stages > 1:
        with pytest.raises(ConfigError, match="pipeline_parallel_size"):
            parse(EngineConfig, args["engine"])
        args["engine"] |= {"pipeline_parallel_size": 1}  # all this version serves; the rest must still be right
    for section, config in SECTIONS.items():
        parse(config, args[section])
        assert args[section].keys() == {f.name for f in fields(config)}, section


def test_default_values_are_the_app_s_own_defaults():
    args = args_of()
    assert args["engine"].pop("model").startswith("/models/smollm2-135m-instruct-")
    assert args["server"].pop("model_name") == "smollm2-135m-instruct"
    assert args["deployment"].pop("placement_strategy") == "STRICT_PACK"
    for section, config in SECTIONS.items():
        defaults = {f.name: f.default for f in fields(config) if f.default is not MISSING}
        assert args[section] == {name: defaults[name] for name in args[section]}, section


def test_every_value_arrives_under_the_app_s_name():
    """A value that differs from the default in each key, so that a swapped or lost key shows."""
    wanted = {
        "engine": different(EngineConfig),
        "server": different(ServerConfig),
        "deployment": different(DeploymentConfig),
    }
    values = {
        "engine": camel(wanted["engine"]),
        "serve": {"server": camel(wanted["server"]), "deployment": camel(wanted["deployment"])},
        "workers": {"gpu": {"ranksPerNode": 1, "numOfHosts": wanted["engine"]["tensor_parallel_size"]}},
    }
    got = args_of(values)
    for section in SECTIONS:
        assert {key: got[section][key] for key in wanted[section]} == wanted[section]


def different(config: type[Any]) -> dict[str, Any]:
    odd = {
        "dtype": "float16",
        "attention_backend": "torch_cpu",
        "linear_backend": "plain",
        "placement_strategy": "PACK",
        "autoscaling_policy": "requests",  # the other one cannot be with PACK
    }
    odd |= {"pipeline_parallel_size": 1, "num_gpus_per_rank": 0.0, "min_replicas": 1, "max_replicas": 1}
    elsewhere = {"model", "model_name", "api_keys_file"}
    result = {}
    for number, f in enumerate(fields(config), start=2):
        if f.name in elsewhere:
            continue
        bigger = (
            not f.default if isinstance(f.default, bool) else None if isinstance(f.default, str) else f.default + number
        )
        result[f.name] = odd.get(f.name, bigger)
    return result


def camel(settings: dict[str, Any]) -> dict[str, Any]:
    def name(key: str) -> str:
        first, *rest = key.split("_")
        return first + "".join(word.capitalize() for word in rest)

    return {name(key): value for key, value in settings.items()}


@pytest.mark.parametrize(
    ("values", "gpus", "strategy", "replicas"),
    [
        ({}, 0, "STRICT_PACK", (1, 1)),
        ({"engine": {"tensorParallelSize": 4}, "workerDefaults": {"ranksPerNode": 2}}, 0, "PACK", (1, 1)),
        (TP_8 | {"workerDefaults": {"gpusPerNode": 8, "replicas": 3}}, 1, "STRICT_PACK", (3, 3)),
        ({"engine": {"tensorParallelSize": 16}, "workerDefaults": {"gpusPerNode": 8}}, 1, "PACK", (1, 1)),
        ({"engine": {"tensorParallelSize": 2}, "workerDefaults": {"gpusPerNode": 8}}, 1, "STRICT_PACK", (4, 4)),
        (SERVE | {"workerDefaults": {"minReplicas": 1, "maxReplicas": 5}}, 0, "STRICT_PACK", (1, 5)),
        ({"workers": {"a": {"replicas": 2}, "b": {"replicas": 1}}}, 0, "STRICT_PACK", (3, 3)),
    ],
)  # fmt: skip
def test_what_is_null_follows_from_the_workers(values, gpus, strategy, replicas):
    args = args_of(values)
    assert args["engine"]["num_gpus_per_rank"] == gpus
    assert args["deployment"]["placement_strategy"] == strategy
    assert (args["deployment"]["min_replicas"], args["deployment"]["max_replicas"]) == replicas


def test_what_is_given_wins_over_what_follows():
    values = {
        "engine": {"numGpusPerRank": 0.5},
        "workerDefaults": {"gpusPerNode": 1, "replicas": 2},
        "serve": {"deployment": {"minReplicas": 1, "maxReplicas": 2, "placementStrategy": "PACK"}},
    }
    args = args_of(values)
    assert args["engine"]["num_gpus_per_rank"] == 0.5
    assert [args["deployment"][key] for key in ("min_replicas", "max_replicas", "placement_strategy")] == [1, 2, "PACK"]


def test_both_kinds_are_told_the_same():
    text = render({"kind": "RayService"}).find("RayService")["spec"]["serveConfigV2"]
    assert yaml.safe_load(text) == config_of(render({"kind": "RayCluster"}))


def test_ports_and_proxies_are_those_of_the_values():
    serve = {
        "httpPort": 8123,
        "grpcPort": 9123,
        "keepAliveTimeoutSeconds": 33,
        "proxyLocation": "HeadOnly",
        "excludeHead": False,
    }
    config = config_of(render({"serve": serve}))
    assert config["proxy_location"] == "HeadOnly"
    assert (config["http_options"]["host"], config["http_options"]["port"]) == ("0.0.0.0", 8123)
    assert (config["http_options"]["keep_alive_timeout_s"], config["grpc_options"]["port"]) == (33, 9123)
    servicer = "llm_ray.api.proto.llmray.v1.inference_pb2_grpc.add_InferenceServicer_to_server"
    assert config["grpc_options"]["grpc_servicer_functions"] == [servicer]


def test_api_keys_are_read_from_the_mounted_secret():
    values = {"auth": {"apiKeys": {"existingSecret": "keys", "key": "k.yaml"}}}
    assert args_of(values)["server"]["api_keys_file"] == "/etc/llm-ray/keys/k.yaml"
    assert asdict(ServerConfig())["api_keys_file"] == args_of()["server"]["api_keys_file"] == ""
