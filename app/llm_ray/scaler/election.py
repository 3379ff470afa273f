"""Leader election by a Lease, of the official client. What it lacks is here: deadlines, and giving the Lease back."""

from __future__ import annotations

import copy
import logging
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from kubernetes.client import ApiClient, Configuration, CoordinationV1Api
from kubernetes.client.exceptions import ApiException
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from urllib3.exceptions import HTTPError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lease:
    """`duration_s` is how long a leader that died is waited for."""

    namespace: str
    name: str
    duration_s: int = 15

    @property
    def renew_s(self) -> float:
        """After so long without a renewal a leader stops; its last two requests end before the Lease does."""
        return 0.6 * self.duration_s

    @property
    def request_s(self) -> float:
        return min(2.0, 0.2 * self.duration_s)

    @property
    def retry_s(self) -> float:
        """The client wants a second at least."""
        return max(1.0, self.duration_s / 7.5)


class _Requests:
    """The three calls of the lock, each with a deadline; no answer is an ApiException, which the lock expects."""

    def __init__(self, configuration: Configuration, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        own = copy.copy(configuration)
        own.retries = False  # the election tries again by itself, and counts the time
        self._api = CoordinationV1Api(ApiClient(own))

    def read_namespaced_lease(self, name: str, namespace: str) -> Any:
        return self._call(self._api.read_namespaced_lease, name, namespace)

    def create_namespaced_lease(self, namespace: str, body: Any) -> Any:
        return self._call(self._api.create_namespaced_lease, namespace, body)

    def replace_namespaced_lease(self, name: str, namespace: str, body: Any) -> Any:
        return self._call(self._api.replace_namespaced_lease, name, namespace, body)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments, _request_timeout=self._timeout_s)
        except ApiException as error:
            if error.status == 403:
                log.warning("event=lease_forbidden error=%r: allow get, create and update of leases", str(error.body))
            raise
        except (HTTPError, OSError) as error:
            raise ApiException(status=0, reason=str(error)) from error


class Election:
    """`run` returns when the Lease is lost, and calls `lead` in a thread once it is held."""

    def __init__(self, configuration: Configuration, lease: Lease, lead: Callable[[], None]) -> None:
        self._lease = lease
        identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        self._lock = cast(Any, LeaseLock(lease.name, lease.namespace, identity))  # type: ignore[no-untyped-call]
        self._lock.api_instance = _Requests(configuration, lease.request_s)
        self._config = electionconfig.Config(  # type: ignore[no-untyped-call]
            self._lock, lease.duration_s, lease.renew_s, lease.retry_s, lead, lambda: None
        )

    @property
    def identity(self) -> str:
        return str(self._lock.identity)

    def run(self) -> None:
        leaderelection.LeaderElection(self._config).run()  # type: ignore[no-untyped-call]

    def release(self) -> None:
        """So that another leads at once. Nothing if the Lease is not held."""
        is_there, record = self._lock.get(self._lease.name, self._lease.namespace)
        if not is_there or record is None or record.holder_identity != self.identity:
            return
        now = str(datetime.now())
        free = LeaderElectionRecord("", "1", now, now)  # type: ignore[no-untyped-call]
        is_released = self._lock.update(self._lease.name, self._lease.namespace, free)
        log.info("event=lease_released ok=%s", is_released)
