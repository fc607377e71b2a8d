"""How long to keep trying: a few times at an address that never answered, longer where a server restarts.

One rule for every call, the first one of a process too: a server that has answered lately is one that restarts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cli import cache
from cli.causes import pause_before

AWAY_S: Final = 60.0  # a server that has answered before may be away so long
_LATELY_S: Final = 120.0  # between two lines of a script; beyond it a server that is away was stopped
_TRIES: Final = 3  # after the first one
_LONGEST_PAUSE_S: Final = 4.0


@dataclass
class Patience:
    """The rule of every call of one client. `reached`: the server has answered lately, so its silence is a restart.

    `heard`: it has answered this client.
    """

    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    note: Callable[[str], None] = lambda line: None
    reached: bool = False
    heard: bool = False
    said: bool = False
    _until: float | None = None

    @contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Within this, a server may be away until `deadline` on the clock, instead of a minute."""
        before, self._until = self._until, deadline
        try:
            yield
        finally:
            self._until = before

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for a state, and not for this one answer."""
        return self._until is not None

    def answered(self) -> None:
        self.reached, self.heard, self.said = True, True, False

    def end(self) -> float:
        """When a server that goes away now has been away long enough, on the clock."""
        return self.clock() + AWAY_S if self._until is None else self._until


def answered_lately(env: Mapping[str, str], server: str) -> bool:
    """Whether a call to this server was answered within the last two minutes, by this process or another one."""
    at = (cache.read(env, cache.name_of("answered", server, "")) or {}).get("at")
    return isinstance(at, int | float) and 0 <= datetime.now(UTC).timestamp() - at < _LATELY_S


def note_answer(env: Mapping[str, str], server: str) -> None:
    cache.write(env, cache.name_of("answered", server, ""), {"at": datetime.now(UTC).timestamp()})


class Tries:
    """The tries of one call; `repeatable` says whether there may be a second one."""

    def __init__(self, patience: Patience, *, repeatable: bool) -> None:
        self._patience, self._repeatable = patience, repeatable
        self._count = 0
        self._end: float | None = None

    def again(self, why: str, *, away: bool, retry_after: str = "") -> bool:
        """Waits and returns True when another try is due. `away`: nobody answered, or a proxy in the server's place.

        `retry_after` is what an answer asks for. `why` is a sentence; people read it once in each absence.
        """
        patience = self._patience
        patient = away and patience.reached
        if not self._repeatable or (not patient and self._count >= _TRIES):
            return False
        pause = pause_before(self._count, retry_after)
        if patient:
            self._end = patience.end() if self._end is None else self._end
            if (left := self._end - patience.clock()) <= 0:
                return False
            pause = min(pause, _LONGEST_PAUSE_S, left)
            if self._count >= _TRIES and not patience.said:
                patience.note(f"warning: {why}; still trying")
                patience.said = True
        self._count += 1
        patience.sleep(pause)
        return True
