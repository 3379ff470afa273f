"""What the leader does: watches, workers and the resync, in threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from kubernetes.client import Configuration

from llm_ray.scaler import handlers
from llm_ray.scaler.kube import Kubernetes, KubernetesError
from llm_ray.scaler.model import Key
from llm_ray.scaler.queue import Queue
from llm_ray.scaler.reconcile import Reconciler, RetryError
from llm_ray.scaler.routes import Routes

WORKERS = 4
RESYNC_S = 30.0
log = logging.getLogger(__name__)


class Controller:
    """`start` returns at once. It is not started twice."""

    def __init__(self, configuration: Configuration, namespaces: Sequence[str], beat: Callable[[], None]) -> None:
        self._configuration, self._namespaces, self._beat = configuration, tuple(namespaces), beat
        self._kubernetes = Kubernetes(configuration)
        self._reconciler = Reconciler(self._kubernetes)
        self._queue, self._routes = Queue(), Routes()
        self._stop = threading.Event()

    def start(self) -> None:
        registry = handlers.registry(self._configuration, self._namespaces, self._routes, self._queue.add)
        self._thread("watch", lambda: handlers.watch(registry, self._namespaces, self._stop))
        self._thread("resync", self._resync)
        for number in range(WORKERS):
            self._thread(f"worker-{number}", self._work)

    def stop(self, timeout_s: float) -> bool:
        """Whether what was being written is written."""
        self._stop.set()
        return self._queue.close(timeout_s)

    def _thread(self, name: str, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name=name, daemon=True).start()

    def _resync(self) -> None:
        while not self._stop.is_set():
            self._beat()
            try:
                lists = [self._kubernetes.scales(namespace) for namespace in self._namespaces or ("",)]
                for key in self._routes.only(scale for found in lists for scale in found):
                    self._queue.add(key)
            except KubernetesError as error:
                log.warning("event=resync_failed error=%r", str(error))
            self._stop.wait(RESYNC_S)

    def _work(self) -> None:
        while not self._stop.is_set():
            key = self._queue.get()
            if key is not None:
                self._reconcile(key)

    def _reconcile(self, key: Key) -> None:
        try:
            again_s = self._reconciler.reconcile(key)
        except Exception as error:  # one object must not stop the work on the others
            wait_s = self._queue.failed(key)
            expected = isinstance(error, KubernetesError | RetryError)
            log.warning("key=%s event=retry in_s=%g error=%r", key, wait_s, str(error), exc_info=not expected)
        else:
            self._queue.done(key, again_s)
