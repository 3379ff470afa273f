"""The control transport between the driver and its ranks: pickled messages over authenticated TCP, one socket per rank.

Knows nothing of Ray, steps or models. Both ends prove that they hold the same random key before anything is unpickled.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import secrets
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from operator import attrgetter
from typing import Any

from llm_ray.engine.sequence import SamplingParams
from llm_ray.engine.step import NewSequence, RankInfo, SampledToken, TokenLogprob

Address = tuple[str, int]

AUTH_TIMEOUT_S = 5.0
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 5, 2, 3


class ChannelClosed(Exception):
    """The other end is gone: its process ended, or its host did."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} closed its connection")
        self.rank = rank


class ChannelTimeout(Exception):
    """Nothing arrived before the deadline."""


def _by_fields(cls: type[Any]) -> Callable[[Any], tuple[type[Any], tuple[Any, ...]]]:
    values = attrgetter(*(f.name for f in fields(cls)))
    return lambda value: (cls, values(value))


class _Pickler(pickle.Pickler):
    # Frozen dataclasses with slots pickle ten times slower than this by default (2.4 against 0.25 us each).
    dispatch_table = copyreg.dispatch_table.copy() | {
        cls: _by_fields(cls) for cls in (SampledToken, TokenLogprob, NewSequence, SamplingParams, RankInfo)
    }


def encode(message: object) -> bytes:
    out = io.BytesIO()
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(message)
    return out.getvalue()


class Link:
    """The rank's end. `send` and `receive` block; both raise ChannelClosed when the driver is gone."""

    def __init__(self, connection: Connection, rank: int) -> None:
        self._connection = connection
        self._rank = rank

    @classmethod
    def connect(cls, address: Address, authkey: bytes, rank: int) -> Link:
        connection = Client(address, authkey=authkey)
        _tune(connection)
        connection.send_bytes(struct.pack("!I", rank))
        return cls(connection, rank)

    def send(self, message: object) -> None:
        try:
            self._connection.send_bytes(encode(message))
        except OSError as error:
            raise ChannelClosed(self._rank) from error

    def receive(self) -> Any:
        try:
            return pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise ChannelClosed(self._rank) from error

    def on_close(self, action: Callable[[], None]) -> None:
        """Run `action` on a thread of its own once the driver is gone, whatever the main thread is doing."""
        poll = select.poll()
        poll.register(self._connection.fileno(), select.POLLRDHUP)

        def watch() -> None:
            poll.poll()
            action()

        threading.Thread(target=watch, name="driver-watch", daemon=True).start()

    def close(self) -> None:
        self._connection.close()


class Hub:
    """The driver's end: listens on `host`, then holds one connection per rank.

    stall_timeout_s bounds every single read and write, so that a stopped process cannot block the driver for ever.
    """

    def __init__(self, host: str, num_ranks: int, stall_timeout_s: float) -> None:
        self.authkey = secrets.token_bytes(32)
        self._stall_timeout_s = stall_timeout_s
        self._listener = socket.create_server((host, 0), backlog=num_ranks)
        self._connections: dict[int, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self.address: Address = (host, self._listener.getsockname()[1])

    @property
    def ranks(self) -> list[int]:
        return sorted(self._connections)

    def accept(self, timeout_s: float) -> int | None:
        """Wait for one rank to connect and prove itself; its number, or None when none did in time."""
        self._listener.settimeout(timeout_s)
        try:
            accepted, _ = self._listener.accept()
        except TimeoutError:
            return None
        accepted.setblocking(True)
        connection = Connection(accepted.detach())
        try:
            _set_timeouts(connection, AUTH_TIMEOUT_S)
            deliver_challenge(connection, self.authkey)
            answer_challenge(connection, self.authkey)
            (rank,) = struct.unpack("!I", connection.recv_bytes())
        except (AuthenticationError, EOFError, OSError, struct.error):
            connection.close()  # a stranger: a port scan, or a rank of an earlier start
            return None
        _tune(connection)
        _set_timeouts(connection, self._stall_timeout_s)
        self._connections[rank] = connection
        self._selector.register(connection, selectors.EVENT_READ, rank)
        return int(rank)

    def send(self, rank: int, message: object) -> None:
        self._write(rank, encode(message))

    def broadcast(self, message: object) -> None:
        """Send one message to every rank; it is encoded once."""
        data = encode(message)
        for rank in self.ranks:
            self._write(rank, data)

    def receive(self, deadline: float) -> tuple[int, Any]:
        """The next message from any rank. deadline: time.monotonic(). Raises ChannelTimeout or ChannelClosed."""
        ready = self._selector.select(max(0.0, deadline - time.monotonic()))
        if not ready:
            raise ChannelTimeout
        rank = ready[0][0].data
        try:
            return rank, pickle.loads(self._connections[rank].recv_bytes())
        except (EOFError, OSError) as error:
            self._drop(rank)
            raise ChannelClosed(rank) from error

    def stop_listening(self) -> None:
        self._listener.close()

    def close(self) -> None:
        self.stop_listening()
        for rank in self.ranks:
            self._drop(rank)
        self._selector.close()

    def _write(self, rank: int, data: bytes) -> None:
        try:
            self._connections[rank].send_bytes(data)
        except OSError as error:
            self._drop(rank)
            raise ChannelClosed(rank) from error

    def _drop(self, rank: int) -> None:
        connection = self._connections.pop(rank)
        self._selector.unregister(connection)
        connection.close()


def _tune(connection: Connection) -> None:
    """Send small messages at once, and learn of a lost host in about ten seconds."""
    with socket.socket(fileno=connection.fileno()) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        sock.detach()


def _set_timeouts(connection: Connection, seconds: float) -> None:
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    with socket.socket(fileno=connection.fileno()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
        sock.detach()
