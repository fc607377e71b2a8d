"""What a model sees of output: head and tail with exact byte counts, cut between characters, never more than the budget."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field

from agents.tools.base import RESULT_BYTES
from workspaces.execution import ExecOutcome, OutputChunk, Stream

STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
LIVE_BYTES = 200_000  # of each stream shown live; the rest is read by the exec's id


def cut_head(data: bytes, limit: int) -> bytes:
    """At most `limit` bytes from the start, not ending inside a UTF-8 character."""
    if len(data) <= limit:
        return data
    end = limit
    while end > max(limit - 3, 0) and data[end] & 0xC0 == 0x80:  # a continuation byte: its character began earlier
        end -= 1
    return data[:end]


def cut_tail(data: bytes, limit: int) -> bytes:
    """At most `limit` bytes from the end, not beginning inside a UTF-8 character."""
    if len(data) <= limit:
        return data
    start = len(data) - limit
    while start < len(data) and start < len(data) - limit + 3 and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


@dataclass(slots=True)
class Kept:
    """Head and tail of one stream in bounded memory, whatever its length."""

    limit: int = RESULT_BYTES
    total: int = 0
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = max(self.limit - len(self.head), 0)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * self.limit:
            del self.tail[: len(self.tail) - self.limit]

    def show(self, budget: int, total: int, exec_id: str) -> tuple[str, bool]:
        """The text for a model and whether something was left out; `total` is the stream's true length in bytes."""
        everything = bytes(self.head + self.tail)
        if total == len(everything) and total <= budget:
            return everything.decode("utf-8", "replace"), False
        head = cut_head(bytes(self.head), budget // 2)
        tail = cut_tail(everything[len(head) :], budget // 2)
        left_out = total - len(head) - len(tail)
        middle = f"\n[{left_out} of {total} bytes left out here; all that is kept: exec {exec_id}]\n"
        return head.decode("utf-8", "replace") + middle + tail.decode("utf-8", "replace"), True


@dataclass(slots=True)
class LiveText:
    """Decodes one stream piece by piece, so that a character split over two chunks arrives whole; stops at LIVE_BYTES."""

    offset: int = 0  # of the next undecoded byte
    closed: bool = False
    _expected: int = 0
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def feed(self, chunk: OutputChunk) -> tuple[int, str]:
        """The text that is complete now and the offset of its first byte; "" when there is none."""
        room = max(LIVE_BYTES - chunk.offset, 0)
        if self.closed or not room:
            return self.offset, ""
        if chunk.offset != self._expected:  # a gap: the character before it will never be whole
            self._decoder.reset()
            self.offset = chunk.offset
        start, self._expected = self.offset, chunk.offset + len(chunk.data)
        text = self._decoder.decode(chunk.data[:room], final=len(chunk.data) >= room)
        pending = len(self._decoder.getstate()[0])
        self.offset = chunk.offset + len(chunk.data[:room]) - pending
        self.closed = len(chunk.data) >= room
        return start, text

    def finish(self) -> tuple[int, str]:
        """What was left of a character that never became whole."""
        start, self.closed = self.offset, True
        return start, self._decoder.decode(b"", final=True)


def verdict(outcome: ExecOutcome) -> str:
    """How an exec ended, in words; from the runtime's verdict, never from text."""
    limit = outcome.evidence.limit
    match outcome.ended_by:
        case "exit":
            return f"exit {outcome.exit_code}"
        case "signal":
            return f"signal {outcome.signal}"
        case "timeout":
            return f"ended by timeout after {limit:g} s" if limit is not None else "ended by timeout"
        case "oom" | "pids" | "disk" | "output_cap":
            unit = {"pids": "processes"}.get(outcome.ended_by, "bytes")
            return f"ended by {outcome.ended_by}" + (f": limit {limit:.0f} {unit}" if limit is not None else "")
        case "cancelled":
            return "cancelled"
    return "lost: the sandbox was lost while it ran; how it ended is unknown"


def exec_text(outcome: ExecOutcome, kept: dict[Stream, Kept], exec_id: str) -> tuple[str, bool]:
    """The result of an exec for a model: verdict, then each stream under a header with its size in bytes."""
    totals: dict[Stream, int] = {"stdout": outcome.stdout_bytes, "stderr": outcome.stderr_bytes}
    half = RESULT_BYTES // 2  # a long stream gets what the other one does not need
    budgets = {
        "stdout": RESULT_BYTES - min(totals["stderr"], half),
        "stderr": RESULT_BYTES - min(totals["stdout"], half),
    }
    lines, truncated = [f"{verdict(outcome)} ({outcome.duration_ms / 1000:.2f} s, exec {exec_id})"], False
    for stream in STREAMS:
        text, cut = kept[stream].show(budgets[stream], totals[stream], exec_id)
        truncated |= cut
        lines.append(f"{stream}: {totals[stream]} bytes" + (f"\n{text.removesuffix(chr(10))}" if text else ""))
    if outcome.survivors:
        names = ", ".join(f"{s.pid} {s.command[:60]}" for s in outcome.survivors[:10])
        lines.append(f"{len(outcome.survivors)} processes still run: {names}")
    return "\n".join(lines), truncated
