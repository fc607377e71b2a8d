"""Why a container of a docker engine is not running any more, from the engine's own facts."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Final

from workspaces.providers.engine import Engine

if TYPE_CHECKING:
    from docker import APIClient

EVENTS_KEPT: Final = 256  # how many events an engine remembers; a restart empties its memory
KILLED: Final = 137
NEAR_NS: Final = 3_000_000_000
SENTENCES: Final = {
    "out_of_memory": "The sandbox used more memory than it has, and the kernel ended all of it.",
    "engine_restart": "The container engine was stopped or restarted, and the sandbox with it.",
    "killed": "The sandbox was killed.",
    "exited": "The runtime in the sandbox ended with exit code {code}.",
}


async def why(engine: Engine, container: dict[str, Any], volume: dict[str, Any]) -> tuple[str, str]:
    """A stable word (`out_of_memory`, `engine_restart`, `killed`, `exited`) and a sentence that says what became of the files."""
    state = container["State"]
    code = state.get("ExitCode")
    if state.get("OOMKilled"):
        reason = "out_of_memory"
    elif code != KILLED:
        reason = "exited"
    else:
        identity = container["Id"]
        reason = await engine.run(lambda client: why_killed(client, identity))
    in_memory = (volume.get("Options") or {}).get("type") == "tmpfs"
    files = "Its files were in memory and went with it." if in_memory else "The files are still there."
    return reason, f"{SENTENCES[reason].format(code=code)} {files}"


def why_killed(client: APIClient, container_id: str) -> str:
    """The word for a kill, from the events that the engine remembers. Runs in the engine's thread.

    Its flag for memory is lost when it hears of the end before it hears of the reason: the event is still there. And an
    end that it does not remember at all is older than itself, unless its memory is full.
    """
    stream = client.events(since=0, until=int(time.time()) + 1, decode=True)
    try:
        events = list(itertools.islice(stream, EVENTS_KEPT))
    finally:
        stream.close()
    mine = [event for event in events if event.get("id") == container_id]
    ends = [event for event in mine if event.get("Action") == "die"]
    if any(_near(ends, event) for event in mine if event.get("Action") == "oom"):
        return "out_of_memory"
    return "killed" if ends or len(events) >= EVENTS_KEPT else "engine_restart"


def _near(ends: list[dict[str, Any]], event: dict[str, Any]) -> bool:
    """Whether the last end came with this event: the memory that ran out long before may have cost a program only."""
    return bool(ends) and abs(ends[-1].get("timeNano", 0) - event.get("timeNano", 0)) < NEAR_NS
