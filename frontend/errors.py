"""The one shape of every error a client sees, and the exception that carries it through the handlers."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from messages.text import Problem

INVALID_REQUEST = "invalid_request_error"
_TYPES = {
    401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 499: "cancelled_error", 503: "service_unavailable_error",
    504: "timeout_error",
}  # fmt: skip

_ANTHROPIC_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error",
}  # fmt: skip


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


class AnthropicErrorDetail(ErrorDetail):
    details: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET


class AnthropicErrorBody(msgspec.Struct):
    """The shape of Anthropic's API, whose words for `type` differ."""

    error: AnthropicErrorDetail
    type: str = "error"


def error_type(status: int) -> str:
    """OpenAI's word for a class of HTTP status."""
    return _TYPES.get(status) or (INVALID_REQUEST if status < 500 else "server_error")


class ApiError(Exception):
    """Ends a request with `status` and an error body. `retry_after` is in seconds and becomes the Retry-After header; `more` are others.

    `details`: what Anthropic's clients are told besides."""

    def __init__(
        self, status: int, code: str | None, message: str, param: str | None = None, retry_after: float | None = None, more: Mapping[str, str] = {}
    ) -> None:
        super().__init__(message)
        self._more = more
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.details: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, problem: Problem, more: Mapping[str, str] = {}) -> "ApiError":
        """The error for a problem another process reported. 429 and 503 always say when to try again."""
        retry = problem.retry_after
        if retry is None and problem.status in (429, 503):
            retry = 1.0
        return cls(problem.status, problem.code, problem.message, problem.param, retry, more)

    def problem(self) -> Problem:
        """What `of` makes this error of."""
        return Problem(status=self.status, code=self.code or "", message=self.message, param=self.param, retry_after=self.retry_after)

    def detail(self) -> ErrorDetail:
        return ErrorDetail(self.message, error_type(self.status), self.param, self.code)

    def body(self) -> bytes:
        return msgspec.json.encode(ErrorBody(self.detail()))

    def anthropic_body(self) -> bytes:
        """In the shape of Anthropic's API."""
        kind = _ANTHROPIC_TYPES.get(self.status) or (INVALID_REQUEST if self.status < 500 else "api_error")
        return msgspec.json.encode(AnthropicErrorBody(AnthropicErrorDetail(self.message, kind, self.param, self.code, self.details)))

    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"WWW-Authenticate": 'Bearer realm="pagewire"'}
        if self.retry_after is None:
            return dict(self._more)
        return {**self._more, "Retry-After": str(max(1, math.ceil(self.retry_after)))}


def too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"The request body is larger than {limit} bytes.")


def unknown_expectation() -> ApiError:
    return ApiError(417, "expectation_failed", "The only Expect header that is known is '100-continue'.")


def invalid(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """A 400 that names the field at fault."""
    return ApiError(400, code, message, param)
