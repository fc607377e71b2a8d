"""What this process counts, for `/metrics`. Labels come from closed sets only: no id, name or address ever becomes one.

The apps call the `*_seen` functions; what the database knows better than a counter is asked at each scrape (`scrape.py`).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SLOW = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
DISK_FULL = 507

_requests = Counter("primer_http_requests", "Answered requests.", ["method", "status"], registry=REGISTRY)
_request_s = Histogram("primer_http_request_seconds", "Time to the answer's head.", registry=REGISTRY, buckets=FAST)
_execs = Counter("primer_execs", "Ended commands by their verdict.", ["ended_by"], registry=REGISTRY)
_overhead_s = Histogram(
    "primer_exec_overhead_seconds", "Time of a command that the program itself did not use.", registry=REGISTRY,
    buckets=FAST,
)  # fmt: skip
_create_s = Histogram(
    "primer_workspace_start_seconds", "From the wish to a running sandbox.", registry=REGISTRY, buckets=SLOW
)
_lag_s = Histogram(
    "primer_event_lag_seconds", "From an event's storing to its handing over to the live readers.", registry=REGISTRY,
    buckets=FAST,
)  # fmt: skip
_tokens = Counter("primer_llm_tokens", "Tokens that models used.", ["provider", "kind"], registry=REGISTRY)
_llm_errors = Counter("primer_llm_errors", "Failed questions to models.", ["provider", "code"], registry=REGISTRY)


def request_seen(method: str | None, status: int, seconds: float) -> None:
    """One answer; `status` is counted by its hundreds, a full disk by itself: most are a workspace's, which its owner filled,
    and no fault of the server."""
    _requests.labels(
        method if method in METHODS else OTHER, "507" if status == DISK_FULL else f"{status // 100}xx"
    ).inc()
    _request_s.observe(seconds)


def exec_seen(ended_by: str, began: float, program_ms: float | None) -> None:
    """The stored end of a command that this process began at `began` (monotonic seconds).

    `program_ms` is what the program itself took, None when nobody measured it.
    """
    _execs.labels(ended_by).inc()
    overhead_s = time.monotonic() - began - (program_ms or 0) / 1000
    if program_ms is not None and overhead_s >= 0:  # below: the program is older than this process
        _overhead_s.observe(overhead_s)


def workspace_seen(phases: list[dict[str, Any]]) -> None:
    """A sandbox runs now; `phases` is its history `{phase, at, reason}`, whose last `pending` is the wish."""
    wishes = [entry["at"] for entry in phases if entry["phase"] == "pending"]
    if wishes:
        _create_s.observe(_since(datetime.fromisoformat(wishes[-1])))


def events_seen(stored_at: datetime) -> None:
    """A batch of live events goes to its readers; its oldest was stored at `stored_at`."""
    _lag_s.observe(_since(stored_at))


def llm_used(provider: str, usage: dict[str, Any]) -> None:
    """The tokens of one reply: `{input_tokens, output_tokens, …}`; `provider` is a kind, not an id."""
    for name, count in usage.items():
        if name.endswith("_tokens") and count:
            _tokens.labels(provider, name.removesuffix("_tokens")).inc(count)


def llm_failed(provider: str, code: str) -> None:
    """One failed question; `code` is one of the stable codes of `LLMError`."""
    _llm_errors.labels(provider, code).inc()


def _since(moment: datetime) -> float:
    """Seconds of the wall clock, 0 when that was set back meanwhile."""
    return max(0.0, (datetime.now(UTC) - moment).total_seconds())
