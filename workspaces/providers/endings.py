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
NEAR_NS: Final = 30_000_000_000  # a busy engine tells of an end many seconds after what caused it
SENTENCES: Final = {
    "out_of_memory": "The sandbox used more memory than it has, and the kernel ended all of it.",
    "engine_restart": "The container engine was stopped or restarted, and the sandbox with it.",
    "killed": "The sandbox was killed.",
    "exited": "The runtime in the sandbox ended with exit code {code}.",
}


async def why(engine: Engine, container: dict[str, Any], volume: dict[str, Any]) -> tuple[str, str]:
    """A stable word (`out_of_memory`, `engine_restart`, `killed`, `exited`) and a sentence that says what became of the files."""
    code, identity = container["State"].get("ExitCode"), container["Id"]
    reason = "exited"
    if code == KILLED:
        # Not by the flag OOMKilled: engines set it also, and for good, when one program of the sandbox was the victim.
        reason = await engine.run(lambda client: why_killed(client, identity))
    in_memory = (volume.get("Options") or {}).get("type") == "tmpfs"
    files = "Its files were in memory and went with it." if in_memory else "The files are still there."
    return reason, f"{SENTENCES[reason].format(code=code)} {files}"


def why_killed(client: APIClient, container_id: str) -> str:
    """The word for a kill, from the events that the engine remembers. Runs in the engine's thread.

    An end for lack of memory comes with that event and was asked for by nobody. An end that the engine does not remember
    at all is older than itself, unless its memory is full.
    """
    stream = client.events(since=0, until=int(time.time()) + 1, decode=True)
    try:
        events = list(itertools.islice(stream, EVENTS_KEPT))
    finally:
        stream.close()
    # By the actor: newer engines leave out the old field `id`.
    mine = [event for event in events if (event.get("Actor") or {}).get("ID") == container_id]
    ends = [event for event in mine if event.get("Action") == "die"]
    near = {event.get("Action") for event in mine if _near(ends, event)}
    if "oom" in near and "kill" not in near:
        return "out_of_memory"
    return "killed" if ends or len(events) >= EVENTS_KEPT else "engine_restart"


def _near(ends: list[dict[str, Any]], event: dict[str, Any]) -> bool:
    """Whether the last end came with this event: the memory that ran out long before may have cost a program only."""
    return bool(ends) and abs(ends[-1].get("timeNano", 0) - event.get("timeNano", 0)) < NEAR_NS
