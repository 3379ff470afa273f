"""Every error this package raises on purpose. The api layer maps each class to one HTTP status."""


class LLMRayError(Exception):
    """Base class; the message names the key, the value, the limit and the fix."""


class ConfigError(LLMRayError):
    """A setting is impossible; raised once, before anything starts."""


class UnsupportedModelError(ConfigError):
    """The checkpoint's architecture is not on the allow-list."""


class InvalidRequestError(LLMRayError):
    """The request can never be served as it is (HTTP 400)."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFullError(LLMRayError):
    """Too many requests are open already (HTTP 429 with Retry-After)."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailableError(LLMRayError):
    """The ranks are being rebuilt, or the engine has stopped (HTTP 503 with Retry-After)."""

    def __init__(self, message: str, *, retry_after_s: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ExecutorError(LLMRayError):
    """A rank died, hung or raised. The whole group is unusable and must be rebuilt."""
