"""A small Hugging Face hub: one model in memory, behind the calls that huggingface_hub makes. It counts downloads."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT, NEWER = "a" * 40, "b" * 40
REPO = "owner/name"


@dataclass
class Hub:
    """`lies`: file → other content than its listing says. `gate`: downloads of weights wait for it."""

    files: dict[str, bytes]
    token: str = ""
    url: str = ""
    lies: dict[str, bytes] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)
    downloads: list[str] = field(default_factory=list)

    def lfs(self, name: str) -> bool:
        return name.endswith(".safetensors")

    def answer(self, path: str) -> Any:
        """The body of an API call, or None."""
        match path.strip("/").split("/"):
            case ["api", "models", _, _, "refs"]:
                refs = [{"name": "main", "ref": "refs/heads/main", "targetCommit": NEWER}]
                tags = [{"name": "v1", "ref": "refs/tags/v1", "targetCommit": COMMIT}]
                return {"branches": refs, "converts": [], "tags": tags}
            case ["api", "models", _, _, "revision", revision] if revision in (COMMIT, NEWER, "v1", "main"):
                return {"id": REPO, "sha": self.commit(revision), "siblings": [self._sibling(n) for n in self.files]}
            case ["api", "models", _, _, "tree", _]:
                return [self._entry(name) for name in self.files]
        return None

    def commit(self, revision: str) -> str:
        return NEWER if revision == "main" else COMMIT if revision == "v1" else revision

    def _sibling(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return {"rfilename": name, "size": len(content), "blobId": "c" * 40} | ({"lfs": lfs} if self.lfs(name) else {})

    def _entry(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        entry = {"type": "file", "path": name, "size": len(content), "oid": "c" * 40}
        return entry | ({"lfs": lfs} if self.lfs(name) else {})


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.reply(401, b"", {"X-Error-Message": "Invalid credentials"})
            elif "/resolve/" in path:
                self.send_file(path.partition("/resolve/")[2].partition("/")[2])
            elif (body := hub.answer(path)) is not None:
                self.reply(200, json.dumps(body).encode(), {"Content-Type": "application/json"})
            else:
                self.reply(404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no such revision"})

        do_HEAD = do_GET

        def send_file(self, name: str) -> None:
            content = hub.lies.get(name, hub.files[name])
            digest = hashlib.sha256(hub.files[name]).hexdigest()
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest if hub.lfs(name) else "c" * 40}"'}
            if hub.lfs(name):
                headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            if self.command == "GET":
                hub.downloads.append(name)
                if hub.lfs(name):
                    hub.arrived.set()
                    hub.gate.wait(60)
            start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
            self.reply(206 if start else 200, content[start:], headers)

        def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def hub(**files: bytes) -> Iterator[Hub]:
    """A hub with these files and a small checkpoint, its gate open."""
    weights = bytes(range(256)) * 4096
    made = Hub({"config.json": b"{}", "model.safetensors": weights, "README.md": b"not needed"} | files)
    made.gate.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        made.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
