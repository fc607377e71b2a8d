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
        restarted = await engine.run(lambda client: engine_restarted(client, identity))
        reason = "engine_restart" if restarted else "killed"
    in_memory = (volume.get("Options") or {}).get("type") == "tmpfs"
    files = "Its files were in memory and went with it." if in_memory else "The files are still there."
    return reason, f"{SENTENCES[reason].format(code=code)} {files}"


def engine_restarted(client: APIClient, container_id: str) -> bool:
    """Whether the container's end is older than the engine: the engine that ended it would remember that.

    False when the memory is full, since the event may have been pushed out. Runs in the engine's thread.
    """
    stream = client.events(since=0, until=int(time.time()) + 1, decode=True)
    try:
        events = list(itertools.islice(stream, EVENTS_KEPT))
    finally:
        stream.close()
    ended = any(event.get("Action") == "die" and event.get("id") == container_id for event in events)
    return not ended and len(events) < EVENTS_KEPT
