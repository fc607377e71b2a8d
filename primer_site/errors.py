"""The one error shape: what services raise, what clients match on, what people read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: `field` is a dotted path into the body (`backend.memory_bytes`), `message` a sentence part."""

    field: str
    message: str

    def to_dict(self) -> dict[str, str]:
        return {"field": self.field, "message": self.message}


def printable(value: str) -> str:
    """Caller's text as it may stand in a sentence: short, on one line, no control characters."""
    return value[:100].encode("unicode_escape").decode() if not value.isprintable() or len(value) > 100 else value


class PrimerError(Exception):
    """Something went wrong."""

    # The docstring of each subclass is its default detail, shown to people; `code` is stable: clients, metrics and
    # tests match on it. `log` is for operators and never leaves the server: engine text holds host paths.
    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    hint: ClassVar[str] = ""

    def __init__(
        self,
        detail: str = "",
        *,
        hint: str = "",
        errors: list[FieldError] | None = None,
        log: str = "",
        retry_after_s: int | None = None,
    ) -> None:
        self.detail = detail or " ".join((type(self).__doc__ or "").split())
        self.hint_text = hint or type(self).hint
        self.errors = errors or []
        self.log = log
        self.retry_after_s = retry_after_s
        super().__init__(self.detail)

    def to_problem(self, request_id: str = "") -> dict[str, Any]:
        """The RFC 9457 body (`application/problem+json`) of this failure."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": self.code.replace("_", " "),
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            "errors": [error.to_dict() for error in self.errors],
            "request_id": request_id,
        }
        if self.hint_text:
            body["hint"] = self.hint_text
        return body


class Invalid(PrimerError):
    """The request is not valid."""

    code, status = "invalid", 422


class Malformed(PrimerError):
    """The body is not JSON."""

    code, status = "invalid", 400


class NotText(PrimerError):
    """The file is not UTF-8 text."""

    code, status = "not_text", 422
    hint = "Read it with encoding=base64, or download it."


class Unauthenticated(PrimerError):
    """Sign in first: the request carries no valid token."""

    code, status = "unauthenticated", 401


class Forbidden(PrimerError):
    """Your role or token does not allow this."""

    code, status = "forbidden", 403


class NotFound(PrimerError):
    """There is no such object."""

    code, status = "not_found", 404


class Conflict(PrimerError):
    """The object is in a state that does not allow this."""

    code, status = "conflict", 409


class InUse(PrimerError):
    """The object is in use."""

    code, status = "in_use", 409


class PreconditionFailed(PrimerError):
    """The object was changed by someone else since you read it."""

    code, status = "precondition_failed", 412


class TooLarge(PrimerError):
    """The request is larger than what is allowed."""

    code, status = "too_large", 413


class UnsupportedMedia(PrimerError):
    """The body has a content type that this route does not take."""

    code, status = "invalid", 415


class RateLimited(PrimerError):
    """Too many requests."""

    code, status, retryable = "rate_limited", 429, True


class Timeout(PrimerError):
    """The operation did not finish in time."""

    code, status, retryable = "timeout", 504, True


class Unavailable(PrimerError):
    """The server cannot answer this now."""

    code, status, retryable = "unavailable", 503, True
