"""A TCP forwarder that cuts connections, as networks do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def breaking_off(times: int, upstream: str) -> Iterator[str]:
    """A forwarder that cuts the first connections that carry a long answer."""
    host, port = upstream.removeprefix("http://").split(":")
    left = [times]

    def forward(client: socket.socket) -> None:
        with client, socket.create_connection((host, int(port))) as server:
            thread = threading.Thread(target=copy, args=(client, server, None), daemon=True)
            thread.start()
            copy(server, client, left)

    def copy(origin: socket.socket, target: socket.socket, cuts: list[int] | None) -> None:
        passed = 0
        try:
            while data := origin.recv(1 << 16):
                target.sendall(data)
                passed += len(data)
                if cuts is not None and passed > 1_000_000 and cuts[0] > 0:
                    cuts[0] -= 1
                    break
            for sock in (origin, target):
                sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=forward, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
