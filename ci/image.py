"""Build app/Dockerfile into an OCI archive with overlay mounts and chroot: no daemon, no container tool. Needs root.

Each step's result is kept in the cache directory under a key made of everything that went into it. The machine's own
package mirror, proxy and certificates are lent to the steps in /run, a tmpfs: nothing of them reaches a layer.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from ci import debian, oci
from ci.dockerfile import Dockerfile, Mount, Run, parse
from llm_ray.model_store import cache_dir

ROOT = Path(__file__).resolve().parents[1]
SUITE = "bookworm"
BASE = f"debian:{SUITE}-slim"
LENT_PREFIXES = ("PIP_", "UV_")
LENT_NAMES = {"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")

OVERLAY = "redirect_dir=off,metacopy=off,index=off"  # plain layers: whole files, whole folders
# $1: merged root, $2: lower folders, $3: upper, $4: work, $5: folder to lend; then SOURCE=TARGET of each further mount
CHROOT = r"""
root=$1; mount -t overlay overlay -o "lowerdir=$2,upperdir=$3,workdir=$4,$OVERLAY" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
cp -r "$5" "$root/run/lent"
for file in resolv.conf hosts; do mount --bind "/etc/$file" "$root/etc/$file"; done
shift 5
for pair in "$@"; do
  source=${pair%%=*}; target=$root${pair#*=}
  if [ -d "$source" ]; then mkdir -p "$target"; else mkdir -p "$(dirname "$target")"; touch "$target"; fi
  mount --bind "$source" "$target"
done
exec chroot "$root" /bin/sh -c "$STEP"
"""


def say(text: str) -> None:
    print(f"image: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> None:
    say(text)
    raise SystemExit(2)


class Builder:
    """Runs steps on top of each other; folder is where their results are kept."""

    def __init__(self, folder: Path, dockerfile: Dockerfile) -> None:
        self.folder, self.dockerfile = folder, dockerfile
        self.layers: list[oci.Layer] = []
        self.key = ""
        self.used: list[str] = []

    def _next(self, *parts: str) -> Path:
        self.key = hashlib.sha256("\0".join((self.key, *parts)).encode()).hexdigest()[:24]
        self.used.append(self.key)
        return self.folder / self.key

    def base(self) -> None:
        """A minimal Debian without what only apt's history and readers of manuals would want."""
        home = self._next(BASE, hashlib.sha256(STRIP.encode()).hexdigest())
        if not (home / "layer.json").exists():
            need("debootstrap")
            say(f"step 0: {BASE} from the machine's Debian mirror (about a minute)")
            shutil.rmtree(home, ignore_errors=True)
            (home / "upper").mkdir(parents=True)
            mirror = [source.address for source in debian.sources(SUITE)[:1]]  # or else debootstrap's default
            command = ["debootstrap", "--variant=minbase", SUITE, str(home / "upper"), *mirror]
            quiet(command, home / "log")
            quiet(["sh", "-euc", STRIP, "sh", str(home / "upper")], home / "log")
        self._done(home, f"FROM {BASE}")

    def run(self, number: int, step: Run) -> None:
        inputs = [digest_of(ROOT / m.source) for m in step.mounts if m.kind == "bind"]
        args = json.dumps(self.dockerfile.args, sort_keys=True) if "$VARIANT" in step.command else ""
        home = self._next(step.command, *inputs, args)
        if not (home / "layer.json").exists():
            say(f"step {number}: {step.command[:100]}...")
            began = time.monotonic()
            shutil.rmtree(home, ignore_errors=True)
            for name in ("upper", "work", "merged", "lent"):
                (home / name).mkdir(parents=True)
            self._execute(home, step)
            for name in ("work", "merged", "lent"):
                shutil.rmtree(home / name)
            say(f"step {number}: done in {time.monotonic() - began:.0f} s")
        self._done(home, f"RUN {step.command}")

    def _execute(self, home: Path, step: Run) -> None:
        lent = home / "lent"
        env = (
            lend(lent)
            | self.dockerfile.args
            | {"STEP": step.command, "OVERLAY": OVERLAY, "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
        )
        lower = ":".join(str(layer.folder) for layer in reversed(self.layers))
        mounts = [f"{self._source(mount)}={mount.target}" for mount in step.mounts]
        inside = ["sh", "-euc", CHROOT, "sh", home / "merged", lower, home / "upper", home / "work", lent, *mounts]
        unshare = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
        quiet([*unshare, *map(str, inside)], home / "log", env)
        for mount in step.mounts:  # the empty mount points of cache mounts
            point = home / "upper" / mount.target.lstrip("/")
            if point.is_dir():
                point.rmdir()

    def _source(self, mount: Mount) -> Path:
        if mount.kind == "bind":
            return ROOT / mount.source
        source = uv_cache() if mount.target.endswith("/uv") else self.folder / "mounts" / mount.target.strip("/")
        source.mkdir(parents=True, exist_ok=True)
        return source

    def _done(self, home: Path, created_by: str) -> None:
        described = home / "layer.json"
        if not described.exists():
            digest, size = oci.measure(home / "upper")
            described.write_text(json.dumps({"digest": digest, "size": size}))
        self.layers.append(oci.Layer(home / "upper", **json.loads(described.read_text()), created_by=created_by))


STRIP = r"""
cd "$1"
rm -rf var/cache/apt/* var/lib/apt/lists/* var/log/* var/cache/ldconfig/aux-cache debootstrap
rm -rf usr/share/doc usr/share/man usr/share/locale usr/share/info etc/apt/sources.list dev/* proc/* sys/* run/*
: >etc/resolv.conf; : >etc/hosts; : >etc/hostname; : >etc/machine-id
printf 'path-exclude /usr/share/%s/*\n' doc man locale info >etc/dpkg/dpkg.cfg.d/slim
"""


def quiet(command: list[str], log: Path, env: dict[str, str] | None = None) -> None:
    """Run a command with its output in log; on failure show the end of it and stop."""
    with log.open("ab") as out:
        full = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(env or {})}
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=full, check=False
        )
    if done.returncode:
        tail = log.read_text(errors="replace")[-3000:]
        fail(f"{command[0]} failed with exit code {done.returncode}; the end of {log}:\n{tail}")


def need(program: str) -> None:
    """Install a Debian package of that name when the program is missing."""
    if shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin"):
        return
    if not shutil.which("apt-get"):
        fail(f"{program} is missing: install it")
    say(f"installing {program}")
    for command in (
        ["apt-get", "-qq", "update"],
        ["apt-get", "-qq", "install", "-y", "--no-install-recommends", program],
    ):
        subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def lend(folder: Path) -> dict[str, str]:
    """Put the machine's ways to its package mirrors into folder (seen as /run/lent) and name them in variables."""
    env = {k: v for k, v in os.environ.items() if k in LENT_NAMES or k.startswith(LENT_PREFIXES)}
    env.pop("UV_CACHE_DIR", None)
    lines = subprocess.run(["apt-config", "dump"], stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()
    wanted = [line for line in lines if line.startswith("Acquire::") and not line.startswith("Acquire::Languages")]
    if CA_BUNDLE.exists():
        shutil.copy(CA_BUNDLE, folder / "ca.crt")
        env |= dict.fromkeys(CA_VARIABLES, "/run/lent/ca.crt")
        wanted.append('Acquire::https::CaInfo "/run/lent/ca.crt";')
    if sources := debian.sources(SUITE):
        lines = [f"deb {source.address} {source.suite} main\n" for source in sources]
        (folder / "sources.list").write_text("".join(lines))
        wanted.append('Dir::Etc::SourceList "/run/lent/sources.list";')
    (folder / "apt.conf").write_text("\n".join(wanted) + "\n")
    return env | {"APT_CONFIG": "/run/lent/apt.conf"}


def uv_cache() -> Path:
    command = [str(Path(sys.executable).parent / "uv"), "cache", "dir"]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def digest_of(path: Path) -> str:
    """Digest of a file, or of every file below a folder with its name; what Python and setuptools leave is not seen."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    total = hashlib.sha256()
    for file in files:
        name = str(file.relative_to(path.parent))
        if "__pycache__" not in name and ".egg-info" not in name:
            total.update(
                f"{name}\0{file.stat().st_mode & 0o111}\0".encode() + hashlib.sha256(file.read_bytes()).digest()
            )
    return total.hexdigest()


def prune(folder: Path, variant: str, used: list[str]) -> None:
    """Forget the steps that neither this build nor the other variant's last one used."""
    (folder / f"used-{variant}.json").write_text(json.dumps(used))
    keep = {key for file in folder.glob("used-*.json") for key in json.loads(file.read_text())}
    for step in folder.iterdir():
        if step.is_dir() and step.name != "mounts" and step.name not in keep:
            shutil.rmtree(step)


def config_of(dockerfile: Dockerfile) -> dict[str, object]:
    return {
        "User": dockerfile.user,
        "WorkingDir": dockerfile.workdir,
        "Entrypoint": dockerfile.entrypoint,
        "Env": [f"{name}={value}" for name, value in dockerfile.env.items()],
        "Labels": dockerfile.labels,
        "ExposedPorts": {port: {} for port in dockerfile.ports},
    }


def build(variant: str, ref: str, target: Path) -> str:
    """Build the image into target; answers with its manifest's digest."""
    dockerfile = parse(ROOT / "app/Dockerfile", {"VARIANT": variant})
    if dockerfile.base != BASE:
        fail(f"app/Dockerfile is FROM {dockerfile.base}, and only {BASE} can be made here")
    folder = cache_dir() / "image"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        builder = Builder(folder, dockerfile)
        builder.base()
        for number, step in enumerate(dockerfile.steps, start=1):
            builder.run(number, step)
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = archive(target, ref, builder.layers, config_of(dockerfile))
        prune(folder, variant, builder.used)
    for layer in builder.layers:
        say(f"layer {layer.size / 1e6:7.0f} MB  {layer.created_by[:80]}")
    return digest


def archive(target: Path, ref: str, layers: list[oci.Layer], config: dict[str, object]) -> str:
    """Write the archive unless it holds this image already; answers with the digest of its manifest."""
    recipe = json.dumps([ref, [layer.digest for layer in layers], config], sort_keys=True)
    made_of = target.with_suffix(".json")
    if target.exists() and made_of.exists() and made_of.read_text() == recipe:
        return oci.identify(target)[1]
    made_of.unlink(missing_ok=True)
    digest = oci.write_archive(target, ref, layers, config)
    made_of.write_text(recipe)
    return digest


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ci.image", description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="keep all of torch's GPU libraries (5 GB)")
    parser.add_argument("--ref", help="the image's name and tag (default: localhost/llm-ray:dev, or :dev-gpu)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        fail("mounting needs root: run it with sudo, or use docker build -f app/Dockerfile .")
    variant = "gpu" if options.gpu else "cpu"
    target = ROOT / "build" / ("llm-ray-gpu.tar" if options.gpu else "llm-ray.tar")
    began = time.monotonic()
    ref = options.ref or f"localhost/llm-ray:dev{'-gpu' if options.gpu else ''}"
    digest = build(variant, ref, target)
    say(
        f"{target.relative_to(ROOT)}: {target.stat().st_size / 1e6:.0f} MB, {ref} {digest}, "
        f"{time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
