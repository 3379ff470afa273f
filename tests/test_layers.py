"""Imports follow the arrows of docs/architecture.md: from the edge to the core, and each heavy library in one place."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "app" / "llm_ray"

CORE = {"llm_ray.errors", "llm_ray.config"}
SEAM = {"llm_ray.engine.step", "llm_ray.engine.sequence"}

# Layer -> what of ours it may import, beside itself. A module belongs to the longest name that starts its own.
LAYERS: dict[str, set[str]] = {
    "llm_ray.errors": set(),
    "llm_ray.config": {"llm_ray.errors"},
    "llm_ray.naming": set(),
    "llm_ray.metrics": CORE,
    "llm_ray.engine": CORE,
    "llm_ray.grammar": CORE,
    "llm_ray.tokenizer": CORE,
    "llm_ray.model_store": CORE,
    "llm_ray.worker": CORE | SEAM | {"llm_ray.grammar"},
    "llm_ray.executor": CORE | SEAM | {"llm_ray.worker", "llm_ray.naming"},
    "llm_ray.executor.fake": CORE | SEAM,
    "llm_ray.api": CORE
    | SEAM
    | {"llm_ray.engine.async_engine", "llm_ray.engine.outputs", "llm_ray.engine.stream"}
    | {"llm_ray.tokenizer", "llm_ray.grammar", "llm_ray.metrics"},
    "llm_ray.deployer": CORE | {"llm_ray.naming"},
    "llm_ray.capacity": {"llm_ray.naming"},
    "llm_ray.scaler": CORE | {"llm_ray.naming"},
    "llm_ray.model_pull": CORE | {"llm_ray.model_store"},
    "llm_ray.simulate": {"llm_ray.errors"},
    "llm_ray.tracing": set(),
    "llm_ray.serve": {"llm_ray"},
    "llm_ray.launch": {"llm_ray"},
    "llm_ray.cli": {"llm_ray"},
    "llm_ray.demo": {"llm_ray"},
}

# Library -> the only layers that may import it.
OWNERS: dict[str, set[str]] = {
    "deepspeed": {"llm_ray.worker"},
    "torch": {"llm_ray.worker"},
    "safetensors": {"llm_ray.worker"},
    "transformers": {"llm_ray.worker", "llm_ray.tokenizer"},
    "llguidance": {"llm_ray.worker", "llm_ray.grammar"},
    "numpy": {"llm_ray.worker"},
    "ray": {
        "llm_ray.serve",
        "llm_ray.capacity",
        "llm_ray.launch",
        "llm_ray.cli",
        "llm_ray.demo",
        "llm_ray.executor.ray",
        "llm_ray.executor.ray_gang",
        "llm_ray.executor.ray_group",
    },
    "fastapi": {"llm_ray.api", "llm_ray.serve"},
    "starlette": {"llm_ray.api", "llm_ray.serve"},
    "pydantic": {"llm_ray.api"},
    "grpc": {"llm_ray.api", "llm_ray.serve"},
    "kubernetes": {"llm_ray.deployer.kube", "llm_ray.scaler"},
    "kopf": {"llm_ray.scaler.handlers"},
    "urllib3": {"llm_ray.deployer.kube", "llm_ray.scaler"},
    "boto3": {"llm_ray.model_pull"},
    "botocore": {"llm_ray.model_pull"},
    "huggingface_hub": {"llm_ray.model_store", "llm_ray.model_pull"},
    "opentelemetry": {"llm_ray.tracing"},
    "matplotlib": {"llm_ray.simulate.plot"},
}
STANDARD_LIBRARY_ONLY = {
    "llm_ray.errors",
    "llm_ray.config",
    "llm_ray.metrics",
    "llm_ray.engine",
    "llm_ray.executor.fake",
}

# In the engine each module imports only modules that stand before it.
ENGINE_ORDER = ["sequence", "step", "outputs", "stream", "block_manager", "plan", "scheduler", "engine", "async_engine"]


def is_within(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def layer_of(module: str) -> str:
    layers = [layer for layer in LAYERS if is_within(module, {layer})]
    assert layers, f"{module} is in no layer: add it to LAYERS"
    return max(layers, key=len)


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(source: str) -> set[str]:
    """Names of modules, at whatever depth of the file; for `from package import module`, the module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = node.module or ""
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else base for name in names}
    return found


def violations(module: str, source: str) -> list[str]:
    layer = layer_of(module)
    faults = []
    for name in sorted(imports_of(source)):
        top = name.partition(".")[0]
        if top == "llm_ray":
            # The package's own top holds the version and nothing else.
            if name != "llm_ray" and not is_within(name, LAYERS[layer] | {layer}):
                faults.append(f"{module} imports {name}, which {layer} must not")
        elif layer in STANDARD_LIBRARY_ONLY and top not in sys.stdlib_module_names:
            faults.append(f"{module} imports {name}, but {layer} has the standard library only")
        elif top in OWNERS and not is_within(module, OWNERS[top]):
            faults.append(f"{module} imports {name}, which only {', '.join(sorted(OWNERS[top]))} may")
    return faults


@pytest.mark.parametrize("module", [module for module in MODULES if module != "llm_ray"])
def test_module_imports_along_the_arrows(module):
    assert violations(module, MODULES[module].read_text()) == []


def test_engine_modules_import_only_those_below_them():
    prefix = "llm_ray.engine."
    names = {module.removeprefix(prefix): path for module, path in MODULES.items() if module.startswith(prefix)}
    assert set(names) == set(ENGINE_ORDER), "a new engine module needs its place in ENGINE_ORDER"
    for name, path in names.items():
        ours = {other.removeprefix(prefix) for other in imports_of(path.read_text()) if other.startswith(prefix)}
        assert ours <= set(ENGINE_ORDER[: ENGINE_ORDER.index(name)]), f"{name} imports upwards"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("llm_ray.engine.scheduler", "import torch"),
        ("llm_ray.engine.scheduler", "def f():\n    from ray import serve"),
        ("llm_ray.engine.engine", "from llm_ray.executor.fake import FakeExecutor"),
        ("llm_ray.engine.engine", "from llm_ray import tokenizer"),
        ("llm_ray.config", "import yaml"),
        ("llm_ray.worker.worker", "import ray"),
        ("llm_ray.worker.worker", "from llm_ray.engine.scheduler import Scheduler"),
        ("llm_ray.executor.local", "import deepspeed"),
        ("llm_ray.executor.fake", "from llm_ray.worker.worker import Worker"),
        ("llm_ray.api.openai", "import ray.serve"),
        ("llm_ray.api.openai", "import torch.nn"),
        ("llm_ray.api.openai", "from llm_ray.engine.scheduler import Scheduler"),
        ("llm_ray.tokenizer", "from llm_ray.api import errors"),
    ],
)
def test_forbidden_import_is_noticed(module, source):
    assert len(violations(module, source)) == 1


def test_scheduling_core_loads_nothing_heavy_even_indirectly():
    code = (
        "import sys, llm_ray.engine.async_engine, llm_ray.executor.fake;"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'__main__'}))"
    )
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['llm_ray']"
