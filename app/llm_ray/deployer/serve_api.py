"""Serve's REST API on the head's dashboard. The standard library is enough, and starts at once."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_ray.deployer.state import Serve, parse_serve
from llm_ray.errors import ConfigError, LLMRayError

PATH = "/api/serve/applications/"
GET_TIMEOUT_S = 10.0
PUT_TIMEOUT_S = 120.0  # the first one starts Serve
LONGEST_MESSAGE = 2000


class DashboardError(LLMRayError):
    """The dashboard does not answer, or not with what was asked for."""


class RejectedError(LLMRayError):
    """Serve refuses this config and will refuse it again."""


@dataclass(frozen=True)
class ServeAPI:
    url: str
    token: str = ""

    def get(self) -> Serve:
        """Raises DashboardError."""
        body = self._call("GET", None, GET_TIMEOUT_S)
        try:
            return parse_serve(json.loads(body))
        except (ValueError, AttributeError, TypeError) as error:
            raise DashboardError(f"the dashboard at {self.url} answered with something else: {body[:200]!r}") from error

    def put(self, config: Mapping[str, Any]) -> None:
        """Raises RejectedError for HTTP 400, else DashboardError."""
        self._call("PUT", json.dumps(config).encode(), PUT_TIMEOUT_S)

    def _call(self, method: str, body: bytes | None, timeout_s: float) -> bytes:
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self.token}"} if self.token else {}
        )
        request = urllib.request.Request(self.url + PATH, body, headers, method=method)
        try:
            with _OPENER.open(request, timeout=timeout_s) as response:
                content: bytes = response.read()
                return content
        except urllib.error.HTTPError as error:
            message = _shorten(error.read().decode(errors="replace"))
            if error.code == 400:
                raise RejectedError(message) from error
            hint = ": set RAY_AUTH_TOKEN to the cluster's token" if error.code in (401, 403) else ""
            raise DashboardError(f"{method} {self.url}{PATH} gave HTTP {error.code}{hint}: {message}") from error
        except (OSError, urllib.error.URLError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise DashboardError(f"the dashboard at {self.url} does not answer: {reason}") from error


def check_url(url: str) -> str:
    if not re.match(r"https?://[^/]+", url):
        raise ConfigError(f"dashboard ({url!r}) must be an address like http://127.0.0.1:8265")
    return url.rstrip("/")


def _shorten(text: str) -> str:
    """The end of a traceback names the cause."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_MESSAGE else "... " + text[-LONGEST_MESSAGE:]


# Without proxies: the dashboard is on this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
