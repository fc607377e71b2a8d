"""What a model sees of output: head and tail with exact byte counts, cut between characters, never more than the budget."""

from __future__ import annotations

import codecs
import re
from collections import deque
from dataclasses import dataclass, field

from agents.tools.base import RESULT_BYTES
from workspaces.execution import ExecOutcome, OutputChunk, Stream, still_running

STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
ERROR_LINES, LINE_BYTES, ERROR_BYTES = 20, 200, 2048  # that a model sees
LOOKED_BYTES, MOST_ERRORS, LONGEST_LINE = 4 * 1024 * 1024, 1000, 64 * 1024  # that the server looks at
TROUBLE = re.compile(  # nothing that repeats: linear in what is searched
    rb"(?:error|exception)s?\b|\b(?:traceback|fatal|failed|failures?|fails?|panic|panicked|segmentation fault|denied|killed"
    rb"|assert|assertion|cannot|undefined|not found)\b",
    re.IGNORECASE,
)
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
class Lines:
    """Lines of a stream that look like errors, with their offsets: the first and the last few of what is looked at."""

    first: list[tuple[int, bytes]] = field(default_factory=list)
    last: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=ERROR_LINES // 2))
    count: int = 0
    _offset: int = 0  # of the rest
    _rest: bytes = b""  # the beginning of a line

    def add(self, data: bytes) -> None:
        if self._offset >= LOOKED_BYTES or self.count >= MOST_ERRORS:  # a flood costs the server no more than this
            return
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) > LONGEST_LINE:
            end = len(data)
        self._look(data[:end])
        self._offset += end
        self._rest = data[end:]

    def finish(self) -> None:
        self._look(self._rest)
        self._rest = b""

    def _look(self, data: bytes) -> None:
        behind = 0  # the line that was taken last
        for match in TROUBLE.finditer(data):
            if match.start() < behind:
                continue
            start = data.rfind(b"\n", 0, match.start()) + 1
            end = data.find(b"\n", match.end())
            behind = end if end >= 0 else len(data)
            start = max(start, match.start() - LINE_BYTES // 2)
            self._take(self._offset + start, data[start : min(behind, start + LINE_BYTES)])

    def _take(self, offset: int, line: bytes) -> None:
        self.count += 1
        if len(self.first) < ERROR_LINES // 2:
            self.first.append((offset, line))
        else:
            self.last.append((offset, line))

    def between(self, start: int, end: int, budget: int) -> bytes:
        """Those that lie in [start, end) of the stream, each with its offset, in at most `budget` bytes."""
        shown = b""
        for offset, line in [*self.first, *self.last]:
            text = b"%d: %s\n" % (offset, cut_head(line, LINE_BYTES))
            if start <= offset < end and len(shown) + len(text) <= budget:
                shown += text
        return shown


@dataclass(slots=True)
class Kept:
    """Head, tail and error lines of one stream in bounded memory, whatever its length."""

    limit: int = RESULT_BYTES
    total: int = 0
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    lines: Lines = field(default_factory=Lines)

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self.lines.add(data)
        room = max(self.limit - len(self.head), 0)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * self.limit:
            del self.tail[: len(self.tail) - self.limit]

    def show(self, budget: int, total: int, stream: Stream, exec_id: str) -> tuple[str, bool]:
        """The text for a model, at most `budget` bytes and a line, and whether something was left out; `total` is the
        stream's true length in bytes."""
        everything = bytes(self.head + self.tail)
        if total == len(everything) and total <= budget:
            return everything.decode("utf-8", "replace"), False
        self.lines.finish()
        for_lines = min(budget // 4, ERROR_BYTES) if self.lines.count else 0
        part = (budget - for_lines) // 2
        head = cut_head(bytes(self.head), part)
        tail = cut_tail(everything[len(head) :], part)
        trouble = self.lines.between(len(head), total - len(tail), for_lines)
        middle = f"\n[{total - len(head) - len(tail)} of {total} bytes left out here: bytes {len(head)} to {total - len(tail)} "
        middle += f"of {stream}; read or search them with exec_id {exec_id}]\n"
        if trouble:
            middle += "[lines in there that look like errors, with their offsets]\n" + trouble.decode(
                "utf-8", "replace"
            )
            middle += "[end of these lines]\n"
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
        text, cut = kept[stream].show(budgets[stream], totals[stream], stream, exec_id)
        truncated |= cut
        lines.append(f"{stream}: {totals[stream]} bytes" + (f"\n{text.removesuffix(chr(10))}" if text else ""))
    if outcome.survivors:
        names = ", ".join(f"{s.pid} {s.command[:60]}" for s in outcome.survivors[:10])
        lines.append(f"{still_running(len(outcome.survivors))}: {names}")
    return "\n".join(lines), truncated
