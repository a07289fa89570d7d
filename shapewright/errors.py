"""Errors of a client. Each message says what to do about it."""

from __future__ import annotations

from typing import Any

from tuner.errors import InvalidInput, ShapewrightError


class ServiceError(ShapewrightError):
    """Base of what ``Client`` raises. ``problem`` is the service's problem document (RFC 9457), empty without one."""

    def __init__(self, message: str, problem: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.problem: dict[str, Any] = problem or {}


class ServiceUnreachable(ServiceError):
    """The service, or its database, does not answer. Nothing is wrong with the request: try again later."""


class NotAllowed(ServiceError):
    """The API key is missing, unknown or revoked."""


class Refused(ServiceError):
    """The request can never work as it is; ``problem`` holds field, problem and remedy where a field is to blame."""


class ServiceNotFound(ServiceError):
    """The service has nothing of that name."""


class BadDownload(ServiceError):
    """The download is incomplete, or not what was requested. Nothing was written."""


class BadEnvironment(InvalidInput):
    """What the environment says of proxies, certificates or keys cannot be used. ``field``: the variable, or the
    file."""
