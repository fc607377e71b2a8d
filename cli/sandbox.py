"""One sandbox of a server for a program that keeps coming back to it: made at the first use, removed at the end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from cli.app import App
from cli.client import FILES_PAGE
from cli.commands.wait import until_gone, until_phase
from cli.errors import CliError
from cli.execution import Execution, Kept, Nowhere
from cli.kinds import TEMPLATE, WORKSPACE, Ref, ref_of
from cli.upload import put

START_S, REMOVAL_S = 300.0, 30.0
TTL_S = 24 * 3600  # what a killed program leaves behind lives so long at most
KEEP_BYTES = 16 * 1024  # of each stream
_HALF = "\ufffd"  # of a character that a gap cut in two


@dataclass
class Ran:
    """How a command ended, and what is kept of its output: beginning and end of each stream, with their true lengths."""

    result: dict[str, Any]
    kept: Kept
    lost: dict[str, int]

    def text(self, stream: str) -> str:
        """What was kept, with a line where a part of the stream is missing: without it two halves read as one line."""
        data, gap = bytes(self.kept.data[stream]), self.result.get(f"{stream}_gap")
        if not (self.lost[stream] and isinstance(gap, list) and len(gap) == 2):
            return data.decode("utf-8", "replace")
        first, behind = gap
        head, tail = (part.decode("utf-8", "replace") for part in (data[:first], data[first:]))
        return f"{head.rstrip(_HALF)}\n[bytes {first} to {behind} of {stream} are not shown]\n{tail.lstrip(_HALF)}"


@dataclass
class Sandbox:
    """`given` is a workspace of the caller's, which stays; without it one is made from `template` and removed."""

    app: App
    given: str = ""
    template: str = ""
    _ref: Ref | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ref(self) -> Ref:
        """The workspace, running. Threads that need it at the same time get the same one."""
        with self._lock:
            if self._ref is None:
                self._ref = ref_of(WORKSPACE, self.given) if self.given else self._make()
                self._ref = self.app.full(self._ref)
                until_phase(self.app, self._ref, "running", START_S, temporary=not self.given)
            return self._ref

    def _make(self) -> Ref:
        template = ref_of(TEMPLATE, self.template or self.app.settings.template.text or "default").id
        made = self.app.client.post("/v1/workspaces", {"template_id": template, "ttl_s": TTL_S}).object
        return Ref(WORKSPACE, str(made.get("id")))

    def start(self, body: dict[str, Any]) -> Execution:
        return Execution(self.app, self.ref().id, Nowhere())

    def finish(self, execution: Execution, body: dict[str, Any]) -> Ran:
        """Runs it to its end; how much output there is makes no difference to memory."""
        result = execution.run({**body, "max_output_bytes": KEEP_BYTES})
        return Ran(result, execution.kept(result), execution.lost)

    def read(self, path: str, offset: int, limit: int) -> dict[str, Any]:
        ref = self.ref()
        return self.app.client.get(self.app.path(ref, "files", "read"), path=path, offset=offset, limit=limit).object

    def write(self, path: str, data: bytes) -> None:
        put(self.app, self.ref(), path, data)

    def listed(self, path: str, recursive: bool, limit: int) -> list[dict[str, Any]]:
        """At most `limit` entries."""
        found = self.app.client.pages(
            self.app.path(self.ref(), "files"),
            limit=limit,
            size=FILES_PAGE,
            path=path,
            recursive="true" if recursive else "false",
        )
        return list(found)

    def close(self) -> None:
        """Removes what was made here; a failure is said, since it leaves something behind."""
        if self._ref is None or self.given:
            return
        try:
            self.app.client.delete(self.app.path(self._ref))
            until_gone(self.app, self._ref, self.app.clock() + REMOVAL_S, f"{REMOVAL_S:g} s")
        except CliError as exc:
            self.app.console.note(f"warning: {self._ref} is left behind: {exc.lines[0]}")
