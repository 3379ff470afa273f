"""A Hugging Face hub of one repository, run in a pod: the directory MODEL at every revision. Python's library alone."""

import hashlib
import json
import os
import shutil
import sys
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

MODEL, PORTS = Path(sys.argv[1]), [int(port) for port in sys.argv[2:]]
COMMIT_LENGTH = 40


@cache
def sha256(name: str) -> str:
    with (MODEL / name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sibling(path: Path) -> dict[str, object]:
    size = path.stat().st_size
    about = {"rfilename": path.name, "size": size, "blobId": "0" * COMMIT_LENGTH}
    if path.suffix == ".safetensors":
        about["lfs"] = {"sha256": sha256(path.name), "size": size, "pointerSize": 130}
    return about


def entry(path: Path) -> dict[str, object]:
    size = path.stat().st_size
    about = {"type": "file", "path": path.name, "size": size, "oid": "0" * COMMIT_LENGTH}
    if path.suffix == ".safetensors":
        about["lfs"] = {"oid": sha256(path.name), "size": size, "pointerSize": 130}
    return about


def files() -> list[Path]:
    return sorted(path for path in MODEL.iterdir() if path.is_file())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        match unquote(urlsplit(self.path).path).strip("/").split("/"):
            case ["api", "models", owner, name, "revision", commit]:
                self.send_json({"id": f"{owner}/{name}", "sha": commit, "siblings": [sibling(one) for one in files()]})
            case ["api", "models", _, _, "tree", _]:
                self.send_json([entry(one) for one in files()])
            case [_, _, "resolve", commit, name] if (MODEL / name).is_file():
                self.send_file(name, commit)
            case _:
                self.send(b"", {"X-Error-Code": "EntryNotFound"}, 404)

    do_HEAD = do_GET

    def send_file(self, name: str, commit: str) -> None:
        size = os.stat(MODEL / name).st_size
        headers = {"X-Repo-Commit": commit, "ETag": f'"{sha256(name)}"', "X-Linked-Size": str(size)}
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        self.begin(206 if start else 200, headers | {"Content-Length": str(size - start)})
        if self.command == "GET":
            with (MODEL / name).open("rb") as file:
                file.seek(start)
                shutil.copyfileobj(file, self.wfile, 1 << 20)

    def send_json(self, content: object) -> None:
        self.send(json.dumps(content).encode(), {"Content-Type": "application/json"})

    def send(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.begin(status, headers | {"Content-Length": str(len(body))})
        if self.command == "GET":
            self.wfile.write(body)

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()


if __name__ == "__main__":
    servers = [ThreadingHTTPServer(("", port), Handler) for port in PORTS]
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    servers[0].serve_forever()
