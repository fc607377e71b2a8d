"""The client's side of a run: who follows it, what was told, credit and acknowledgement."""

from __future__ import annotations

from . import protocol
from .loop import IN, OUT
from .paths import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .connection import Connection
    from .loop import Loop
    from .output import Input, Output
    from .start import StartRequest


class Followed:
    """One connection at a time follows a run; it may go and another may come, and nothing of the run changes."""

    loop: Loop
    request: StartRequest
    state: str
    main: int
    stdin: Input
    outputs: tuple[Output, Output]

    def __init__(self) -> None:
        self.client: Connection | None = None
        self.stream = 0
        self.told = False  # outcome or failure was sent to this client
        self.failure: Failure | None = None
        self.outcome: dict[str, Any] | None = None

    def attach(self, client: Connection, stream: int, body: dict[str, Any]) -> None:
        """This connection gets what is not yet taken, from the given offsets; the one before gets nothing more."""
        for output in self.outputs:
            name = "stdout_offset" if output.channel == protocol.STDOUT else "stderr_offset"
            if not 0 <= int(body.get(name, 0)) <= output.stored:
                raise Failure("invalid", "an offset lies beyond the output")
        if self.client is not None and (self.client is not client or self.stream != stream):
            self.client.forget(self.stream)
        self.client, self.stream, self.told = client, stream, False
        client.handle(stream, self)
        for output in self.outputs:
            name = "stdout_offset" if output.channel == protocol.STDOUT else "stderr_offset"
            output.rewind(int(body.get(name, 0)))
            output.limit = output.sent + int(body.get("credit", 0))
        if self.state != "starting":
            self._tell_started()
        if self.state == "ended":
            self._tell_end()

    def _tell_started(self) -> None:
        if self.client is not None and self.failure is None:
            out, err = self.outputs
            body = {"pid": self.main, "stdin": self.stdin.accepted, "stdout": out.sent, "stderr": err.sent}
            self.client.send(protocol.EVENT, self.stream, protocol.dumps(body))

    def _tell_end(self) -> None:
        if self.client is None or self.told:
            return
        self.told = True
        if self.failure is not None:
            self.client.send(protocol.FAIL, self.stream, protocol.dumps(self.failure.body()))
            self.client.forget(self.stream)
            self.client = None
        elif self.outcome is not None:
            self.client.send(protocol.REPLY, self.stream, protocol.dumps({"outcome": self.outcome}))
            self._release_if_taken()

    def _release_if_taken(self) -> None:
        if self.told and self.client is not None and not any(output.kept for output in self.outputs):
            self.client.forget(self.stream)
            self.client = None

    def pump(self) -> bool:
        """Sends at most one chunk of each output; True when there may be more."""
        sent = False
        for output in self.outputs:
            piece = output.chunk()
            if piece is not None and self.client is not None:
                self.client.send(protocol.DATA, self.stream, protocol.pack_data(output.channel, *piece))
                sent = True
        return sent

    def on_data(self, channel: int, offset: int, data: bytes) -> None:
        self.stdin.add(offset, data)
        self.write_stdin()

    def on_end(self, channel: int) -> None:
        self.stdin.ended = True
        if self.state != "starting":
            self.stdin.flush()

    def on_credit(self, channel: int, taken: int, limit: int) -> None:
        for output in self.outputs:
            if output.channel == channel:
                output.credit(taken, limit)
                if output.fd >= 0 and self.state != "ended":
                    self.loop.watch(output.fd, IN if output.room else 0)
        self._release_if_taken()

    def on_close(self) -> None:
        """The connection is gone; the run goes on, and its output waits within the window."""
        self.client = None

    def write_stdin(self, mask: int = 0) -> None:
        if self.state != "starting":  # a keeper that is replaced brings a new pipe: nothing may be in the old one
            self.stdin.flush()
        if self.stdin.fd >= 0 and self.state != "starting":
            self.loop.watch(self.stdin.fd, OUT if self.stdin.waiting else 0, self.write_stdin)
        if self.client is not None:
            limit = self.stdin.written + protocol.WINDOW
            self.client.send(
                protocol.CREDIT, self.stream, protocol.pack_credit(protocol.STDIN, self.stdin.written, limit)
            )
