"""Make an installed CUDA build of torch fit for a CPU image: 4 GB of libraries that only a GPU could use go.

torch is linked against them, so what it needs at load time is replaced by a library of the same name whose functions
return 1, an error in every one of their APIs. torch.cuda.is_available() stays False, by the real libcudart.
Usage: slim_torch.py SITE_PACKAGES (needs gcc, nm and readelf). Standard library only.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REAL = re.compile(r"lib(cudart|cupti|cufile|cudnn)\.so")  # below 5 MB each
GPU_ONLY = (
    "triton",
    "triton-*.dist-info",
    "cuda",
    "cuda_*.dist-info",
    "torch/include",
    "torch/lib/libtorch_cuda_linalg.so",
)


def output(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def needed(library: Path) -> set[str]:
    """The sonames that a library asks the loader for."""
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", library)))


def symbols(library: Path, which: str) -> dict[str, str]:
    """Dynamic symbols of a library, name → version ("" for none); which: --defined-only or --undefined-only."""
    names = (line.split()[-1] for line in output("nm", "-D", which, library).splitlines())
    return {name: version.lstrip("@") for name, _, version in (n.partition("@") for n in names)}


def write_stub(target: Path, functions: dict[str, str]) -> None:
    """Replace target by a library of the same soname that defines the functions, with their versions."""
    by_version: dict[str, list[str]] = {}
    for name, version in functions.items():
        by_version.setdefault(version, []).append(name)
    nodes = [f"{version} {{ global: {'; '.join(names)}; }};" for version, names in by_version.items() if version]
    with tempfile.TemporaryDirectory() as scratch:
        code, script = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        code.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in sorted(functions)))
        script.write_text("\n".join(nodes))
        versions = [f"-Wl,--version-script={script}"] if nodes else []
        made = Path(scratch, target.name)
        output(
            "gcc", "-shared", "-fPIC", "-fno-builtin", "-s", f"-Wl,-soname,{target.name}", *versions, "-o", made, code
        )
        target.unlink()
        shutil.copy(made, target)


def slim(site: Path) -> None:
    for pattern in GPU_ONLY:
        for path in site.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    torch_libraries = sorted((site / "torch/lib").glob("lib*.so"))
    wanted = set().union(*(needed(library) for library in torch_libraries))
    undefined: dict[str, str] = {}
    for library in torch_libraries:
        undefined |= symbols(library, "--undefined-only")
    for library in sorted(p for p in (site / "nvidia").rglob("*") if p.is_file() and ".dist-info" not in str(p)):
        if library.name in wanted and REAL.match(library.name):
            continue
        if library.name not in wanted:
            library.unlink()
            continue
        defined = symbols(library, "--defined-only")
        write_stub(library, {name: version for name, version in undefined.items() if name in defined})


if __name__ == "__main__":
    slim(Path(sys.argv[1]))
