"""Probes: /healthz is 503 when the work has stood still, /readyz is 200 as long as the process lives, leader or not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from llm_ray.errors import ConfigError

STALE_S = 120.0


class Health:
    """A standby has nothing to do, and is well; a leader beats with every resync."""

    def __init__(self, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat: float | None = None
        health = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                status, text = health.answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                """The kubelet asks every few seconds."""

        self._server = _listen(port, Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def beat(self) -> None:
        """The leader has got somewhere."""
        self._beat = self._clock()

    def answer(self, path: str) -> tuple[int, bytes]:
        if path not in ("/healthz", "/readyz"):
            return 404, b"only /healthz and /readyz are here\n"
        if self._beat is None:
            return 200, b"ok, standby\n"
        age = self._clock() - self._beat
        is_well = path == "/readyz" or age < STALE_S
        return (200 if is_well else 503), f"leader, last resync {age:.0f} s ago\n".encode()


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
