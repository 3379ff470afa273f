"""What an operator can see: one key=value line per change on stderr, and /healthz."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TextIO

from llm_ray.errors import ConfigError

STALE_S = 30.0
ADDRESS = re.compile(r" object at 0x[0-9a-f]+")


class Log:
    """Lines of key=value. Troubles are kept by source, and told when they begin, change and end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.troubles: dict[str, str] = {}

    def event(self, event: str, **values: object) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        pairs = [f"{key}={_quoted(value)}" for key, value in values.items()]
        print(" ".join([f"time={now}", f"event={event}", *pairs]), file=self._stream, flush=True)

    def trouble(self, source: str, error: object) -> None:
        message = ADDRESS.sub("", str(error))  # which differs from one attempt to the next
        if self.troubles.get(source) != message:
            self.troubles[source] = message
            self.event("trouble", source=source, error=message)

    def fine(self, source: str) -> None:
        if self.troubles.pop(source, None) is not None:
            self.event("recovered", source=source)


def _quoted(value: object) -> str:
    text = str(value)
    return text if re.fullmatch(r"[^\s\"=]+", text) else json.dumps(text, ensure_ascii=False)


class Health:
    """Answers GET /healthz: 200 while the loop moves, else 503; the body is its state as JSON."""

    def __init__(self, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat = clock()
        self.state: dict[str, Any] = {}
        health = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/healthz":
                    self.send_error(404, "only /healthz is here")
                    return
                status, body = health.answer()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """The kubelet asks every few seconds."""

        self._server = _listen(port, Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def beat(self) -> None:
        """The loop has got somewhere."""
        self._beat = self._clock()

    def answer(self) -> tuple[int, bytes]:
        age = self._clock() - self._beat
        status = 200 if age < STALE_S else 503
        return status, json.dumps(self.state | {"last_beat_s": round(age, 1)}).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _DualStackServer(ThreadingHTTPServer):
    """The kubelet comes to the pod's address, of whichever family that is."""

    address_family = socket.AF_INET6
    daemon_threads = True

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _listen(port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    try:
        if socket.has_dualstack_ipv6():
            return _DualStackServer(("::", port), handler)
        return ThreadingHTTPServer(("0.0.0.0", port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"health-port ({port}) cannot be listened on: {error}: choose a free one") from error
