"""The `llm-ray` command. stdout is data, stderr is talk; exit code 0 fine, 1 could not do it, 2 wrong usage."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import Field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import llm_ray
from llm_ray import demo as demo_module
from llm_ray import model_store
from llm_ray.api.auth import hash_key, load_keys, new_key
from llm_ray.config import DeploymentConfig, EngineConfig, ServerConfig, parse
from llm_ray.deployer import command as deployer_command
from llm_ray.errors import ConfigError, LLMRayError
from llm_ray.launch import running, wait_for_interrupt
from llm_ray.model_pull import command as pull_command
from llm_ray.scaler import command as scaler_command
from llm_ray.simulate import command as simulate_command
from llm_ray.worker import architectures

CONFIGS = (EngineConfig, ServerConfig, DeploymentConfig)
DEFAULT_PORT, DEFAULT_GRPC_PORT = 8000, 9000


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(_unknown(unknown[0]))
    try:
        args.run(args)
    except ConfigError as error:
        return _fail(error, 2)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return _fail(error, 1)
    return 0


def _fail(error: Exception, code: int) -> int:
    if os.environ.get("LLM_RAY_DEBUG"):
        raise error
    text = str(error) if isinstance(error, LLMRayError | OSError) else f"{type(error).__name__}: {error}"
    print(f"llm-ray: {text}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llm-ray", description=llm_ray.__doc__)
    parser.add_argument("--version", action="version", version=f"llm-ray {llm_ray.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands)
    demo = commands.add_parser("demo", help="serve a small model with two ranks and ask it something")
    demo_module.add_arguments(demo)
    demo.set_defaults(run=demo_module.run)
    deployer_command.add_arguments(
        commands.add_parser("deployer", help="sidecar of the head pod: deploy the Serve config, label serving pods")
    )
    scaler_command.add_arguments(
        commands.add_parser("scaler", help="controller of WorkerGroupScale: scale worker groups by whole gangs")
    )
    simulate_command.add_arguments(
        commands.add_parser("simulate", help="replay a request trace against an autoscaling policy")
    )
    model = commands.add_parser("model", help="prepare checkpoints").add_subparsers(required=True, metavar="COMMAND")
    prepare = model.add_parser("demo", help="prepare the demo model once, print its directory")
    prepare.add_argument(
        "--dtype", choices=model_store.DEMO_DTYPES, default=model_store.DEMO_DTYPES[0], help="default: %(default)s"
    )
    prepare.set_defaults(run=_model_demo)
    pull_command.add_commands(model)
    key = commands.add_parser("key", help="API keys").add_subparsers(required=True, metavar="COMMAND")
    new = key.add_parser("new", help="make a key: prints the secret, and the entry for the keys file")
    new.add_argument("--name", required=True, type=_name, help="who it is for; shown in logs")
    new.set_defaults(run=_key_new)
    return parser


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve a model on this machine until Ctrl-C",
        usage="llm-ray serve --model MODEL [--tp N] [--port N] [setting ...], see llm-ray serve --help",
    )
    serve.add_argument("--tp", dest="tensor_parallel_size", type=int, default=argparse.SUPPRESS, metavar="N",
                       help="short for --tensor-parallel-size")  # fmt: skip
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=int, default=DEFAULT_PORT, help="HTTP; 0 is any free one (default: %(default)s)")
    serve.add_argument("--grpc-port", type=int, default=DEFAULT_GRPC_PORT, help="gRPC (default: %(default)s)")
    for config in CONFIGS:
        group = serve.add_argument_group(
            config.__name__.removesuffix("Config").lower(), (config.__doc__ or "").splitlines()[0]
        )
        types = get_type_hints(config)
        for f in fields(config):
            _add_setting(group, f, types[f.name])
    serve.set_defaults(run=_serve)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _unknown(argument: str) -> str:
    name = argument.partition("=")[0]
    near = get_close_matches(name, [_flag(f.name) for config in CONFIGS for f in fields(config)], 1)
    return f"unknown argument {name}: " + (f"did you mean {near[0]}?" if near else "see --help")


def _add_setting(group: Any, f: Field[Any], wanted: Any) -> None:
    """One flag per field. Only flags that were given are kept: the dataclass stays the one place of defaults."""
    options: dict[str, Any] = {"dest": f.name, "default": argparse.SUPPRESS}
    default = "" if f.default == "" else f" (default: {f.default})"
    options["help"] = f.metadata["help"].replace("%", "%%") + default
    if wanted is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif get_origin(wanted) is Literal:
        options["choices"] = get_args(wanted)
    else:
        options |= {"type": wanted, "metavar": wanted.__name__.upper()}
    options["required"] = f.name == "model"
    group.add_argument(_flag(f.name), **options)


def settings(config: type[Any], args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `config` that the command line sets."""
    return {f.name: getattr(args, f.name) for f in fields(config) if hasattr(args, f.name)}


def _serve(args: argparse.Namespace) -> None:
    server = parse(ServerConfig, settings(ServerConfig, args))
    deployment = parse(DeploymentConfig, settings(DeploymentConfig, args))
    engine = settings(EngineConfig, args)
    wanted = parse(EngineConfig, engine)  # complain of a wrong flag before anything is downloaded
    engine["model"] = str(model_store.resolve(args.model, log=_say))
    # Refuse before anything starts what would be refused after a minute.
    checkpoint = architectures.read_checkpoint_config(engine["model"])
    architectures.find(checkpoint)
    architectures.check_limits(checkpoint, wanted.tensor_parallel_size, wanted.max_model_len)
    if server.api_keys_file:
        server = replace(server, api_keys_file=str(Path(server.api_keys_file).resolve()))
        load_keys(Path(server.api_keys_file))
    _say(f"starting {engine['model']} (tensor_parallel_size {wanted.tensor_parallel_size})")
    stdout = sys.stdout
    ports = {"host": args.host, "port": args.port, "grpc_port": args.grpc_port}
    with running(parse(EngineConfig, engine), server, deployment, **ports) as endpoints:
        _say(f"ready: {endpoints.url}/v1 (OpenAI), {endpoints.grpc} (gRPC); Ctrl-C stops it")
        print(json.dumps({"http": endpoints.url, "grpc": endpoints.grpc}), file=stdout, flush=True)
        wait_for_interrupt()


def _model_demo(args: argparse.Namespace) -> None:
    print(model_store.demo_model(args.dtype, log=_say))


def _key_new(args: argparse.Namespace) -> None:
    secret = new_key()
    print(f"secret: {secret}")
    print("entry:")
    print(f"  - name: {json.dumps(args.name)}\n    sha256: {hash_key(secret)}")
    _say("the secret is not stored anywhere: hand it over now; put the entry under `keys:` in the keys file")


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
