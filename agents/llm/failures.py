"""What an endpoint's refusal means: whether a retry may help, and the sentence for people. Pure but for the clock."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from agents.llm.base import ContextTooLong, LLMConfig, LLMError, LLMUnavailable
from agents.redact import MASK, Redactor

QUOTED_CHARS = 300
AGAIN = frozenset({408, 409, 429})
PASSING = frozenset(
    {"overloaded_error", "api_error", "rate_limit_error", "timeout_error", "server_error", "conflict_error"}
)
SPENT = frozenset({"insufficient_quota", "billing_error", "billing_hard_limit_reached"})
TOO_LONG = re.compile(
    r"prompt is too long|context[ _]?(?:length|window|size)|maximum context|exceeds? the (?:available|model'?s) context"
    r"|exceed context limit|too many tokens|reduce the length|request_too_large",
    re.IGNORECASE,
)
# What an endpoint quotes of a question, in a sentence of its own: several words between quotes. A name alone is no such
# quote, and neither is the message of another endpoint that a gateway passes on.
QUOTED = re.compile(
    r"""(?P<passed_on>\\{0,7}["']message\\{0,7}["']\s{0,4}:\s{0,4}\\{0,7}["'])|(?<!\w)["'`\u201c\u2018](?=\S)[^\s"'`\u201d\u2019]*\s"""
)
# Endpoints quote keys, whole or with stars in the middle.
KEY = re.compile(r"\b(?:sk|pk|rk|key|xai|gsk)[-_][\w*.…-]{4,}|\bBearer\s+\S+", re.IGNORECASE)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def scrub(text: str, redactor: Redactor) -> str:
    """An endpoint's words as they may be shown: short, on one line, without keys."""
    text = CONTROL.sub(" ", KEY.sub(MASK, redactor.hide(text))).strip()
    return text if len(text) <= QUOTED_CHARS else f"{text[:QUOTED_CHARS].rstrip()}…"


def of_status(status: int, body: Any, headers: Mapping[str, str], redactor: Redactor) -> LLMError:
    """The failure behind an HTTP status, or behind an error inside of a stream, which comes with status 200."""
    kinds, message = parts(body)
    own = own_words(message)
    said = scrub(message, redactor)
    quoted = f' It says: "{said}"{"" if said[-1] in ".!?…" else "."}' if said else ""
    if kinds & SPENT or status == 402:
        return LLMConfig(
            f"The model's endpoint wants to be paid.{quoted}", hint="Look at the account's plan and limits."
        )
    if status == 413 or (status in (200, 400, 422, 500) and (TOO_LONG.search(own) or any(map(TOO_LONG.search, kinds)))):
        return ContextTooLong(f"The conversation is longer than what the model takes.{quoted}")
    if status in AGAIN or status >= 500 or (status < 300 and (kinds & PASSING or not kinds & REFUSALS)):
        return LLMUnavailable(f"{_WHY.get(status, _why(kinds))}{quoted}", retry_after_s=retry_after(headers))
    if 300 <= status < 400:
        return LLMConfig(
            "The model's endpoint redirects to another address.", hint="Set base_url to the final address."
        )
    if status in (401, 403) or kinds & {"authentication_error", "permission_error"}:
        return LLMConfig(f"The model's endpoint does not accept the key.{quoted}", hint="Set a valid api_key.")
    if status == 404:
        return LLMConfig(
            f"The model's endpoint does not know this model or this path.{quoted}",
            hint="Check model_name (primectl llm-provider models PROVIDER lists what there is) and base_url, which ends before "
            "/v1/messages (anthropic) or /chat/completions (openai).",
        )
    return LLMConfig(f"The model's endpoint refuses the request.{quoted}")


REFUSALS = frozenset(
    {"invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large"}
)
_WHY = {
    408: "The model's endpoint did not answer in time.",
    429: "The model's endpoint has a rate limit, and it is reached.",
    503: "The model's endpoint is not available.",
    529: "The model's endpoint is overloaded.",
}


def _why(kinds: set[str]) -> str:
    if "overloaded_error" in kinds:
        return _WHY[529]
    if "rate_limit_error" in kinds:
        return _WHY[429]
    return "The model's endpoint has an error of its own."


def own_words(message: str) -> str:
    """The message up to the first quote of what was asked: what a person or a program wrote must not be read as a wish of
    the endpoint's."""
    for quote in QUOTED.finditer(message):
        if not quote["passed_on"]:
            return message[: quote.start()]
    return message


def parts(body: Any) -> tuple[set[str], str]:
    """Types and codes of an error body, and its message; bodies come as `{error: {…}}`, as the inside of it, or as text."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(inner, dict):
        return set(), inner if isinstance(inner, str) and not inner.lstrip().startswith("<") else ""
    kinds = {value for name in ("type", "code") if isinstance(value := inner.get(name), str)}
    message = inner.get("message", inner.get("detail"))
    return kinds, message if isinstance(message, str) else ""


def retry_after(headers: Mapping[str, str]) -> int | None:
    """Seconds that the endpoint asks to wait, from any of the ways to say so; None when it does not."""
    milliseconds, value = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0, math.ceil(float(milliseconds) / 1000))
        if value is not None:
            return max(0, math.ceil(float(value)))
    except (ValueError, OverflowError):
        pass
    try:
        at = parsedate_to_datetime(value or "")
        return max(0, math.ceil((at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()))
    except (ValueError, TypeError, OverflowError):
        return None
