"""Exec from the caller's side: output as it is produced, resumed by offset, never started a second time."""

from __future__ import annotations

import base64
import json
import select
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from cli.app import App
from cli.client import MAX_JSON, new_key, not_primer
from cli.errors import NOT_THERE, ApiError, CliError, ClosedPipe, Exit, Unreachable
from cli.kinds import WORKSPACE, Ref
from cli.output import Console, InertStream, encoded
from cli.patience import AWAY_S
from cli.wire import segment

STDIN_CAP = 8 * 1024 * 1024
_SILENCE_S = 60.0  # of a live stream before its state is asked for
_FAST_S, _SLOW_S = 0.5, 2.0  # between two looks at an exec whose stream broke
_NOTICE_S = 5.0  # until the server has noticed that a sandbox is gone
_PAGE = 256 * 1024
_STREAMS = ("stdout", "stderr")


class Sink(Protocol):
    """Where output goes."""

    def write(self, stream: str, data: bytes) -> None: ...
    def close(self) -> None: ...


class Screen:
    """The caller's two streams: bytes as they are on a pipe, made inert on a terminal unless `raw`."""

    def __init__(self, console: Console, *, raw: bool = False) -> None:
        self.console = console
        self._inert = {
            "stdout": InertStream(colour=console.colours(console.out_tty)) if console.out_tty and not raw else None,
            "stderr": InertStream(colour=console.colours(console.err_tty)) if console.err_tty and not raw else None,
        }

    def write(self, stream: str, data: bytes) -> None:
        filter_ = self._inert[stream]
        self._put(stream, data if filter_ is None else encoded(filter_.feed(data)))

    def close(self) -> None:
        for stream, filter_ in self._inert.items():
            if filter_ is not None:
                self._put(stream, encoded(filter_.feed(b"", final=True)))
                if filter_.coloured:
                    self._put(stream, b"\x1b[0m")

    def _put(self, stream: str, data: bytes) -> None:
        if stream == "stdout":
            self.console.write(data)
        else:
            self.console.write_err(data)


class Kept:
    """Bytes of both streams, for `-o json`."""

    def __init__(self) -> None:
        self.data = {name: bytearray() for name in _STREAMS}

    def write(self, stream: str, data: bytes) -> None:
        self.data[stream] += data

    def close(self) -> None:
        return


class Nowhere:
    """Live output that nobody looks at."""

    def write(self, stream: str, data: bytes) -> None:
        return

    def close(self) -> None:
        return


class _Broken(Exception):
    """The stream ended without a result."""


@dataclass
class Execution:
    """One exec in `workspace`. After `run`: `lost` holds the gaps that could not be filled, per stream."""

    app: App
    workspace: str
    sink: Sink

    def __post_init__(self) -> None:
        self.id = ""
        # `unkept`: of those lost, what came behind the end of what is kept
        self.offset, self.lost, self.unkept = (dict.fromkeys(_STREAMS, 0) for _ in range(3))
        self._heard = self.app.clock()  # when the server last had something to say

    @property
    def _path(self) -> str:
        return f"/v1/workspaces/{segment(self.workspace)}/exec"

    def run(self, body: dict[str, Any]) -> dict[str, Any]:
        """Starts it and returns its result. Ctrl-C ends the program first and then raises KeyboardInterrupt.

        A reader that went away ends it too, in silence: as in a pipe of this machine, nobody takes what it prints.
        """
        try:
            try:
                return self._run(body)
            except KeyboardInterrupt:
                self.cancel()
                raise
            except ClosedPipe:
                if self.id:
                    with suppress(CliError):  # once: nobody is there to see what it waits for
                        self.app.client.call("DELETE", f"{self._path}/{segment(self.id)}", retry=False)
                raise
        finally:
            self.sink.close()

    def kept(self, result: dict[str, Any]) -> Kept:
        """What the server keeps of an ended exec, head and tail; `lost` then counts what is missing of its `result`."""
        kept = self.sink = Kept()
        self.offset, self.lost, self.unkept = (dict.fromkeys(_STREAMS, 0) for _ in range(3))
        for stream in _STREAMS:
            self.page_all(stream)
            self.leave(stream, result.get(f"{stream}_bytes"))
        return kept

    def leave(self, stream: str, upto: Any) -> None:
        """Counts as lost what is missing up to an offset: it came behind the end of what is kept."""
        missing = max(0, upto - self.offset[stream]) if isinstance(upto, int) else 0
        for counts in (self.lost, self.unkept, self.offset):
            counts[stream] += missing

    def page_all(self, stream: str) -> None:
        """Gives the sink all that is kept of a stream from its offset on."""
        while self._page(stream):
            pass

    def cancel(self) -> None:
        """Ends the program and shows what it still printed; a second Ctrl-C leaves at once."""
        if not self.id:
            self.app.console.note(f"warning: interrupted before the start was confirmed; look at {self.workspace}")
            return
        try:
            self.app.client.delete(f"{self._path}/{segment(self.id)}")
            self.resume()
        except CliError as exc:
            self.app.console.note(f"warning: not confirmed that {self.id} ended: {exc.lines[0]}")

    def _run(self, body: dict[str, Any]) -> dict[str, Any]:
        """Streams; a stream that broke is joined again by its key, and read by offset meanwhile."""
        key, pause, self._heard = new_key(), _FAST_S, self.app.clock()
        while True:
            seen = self._seen
            try:
                return self._stream(body, key)
            except _Broken:
                pass
            except ApiError as exc:
                if not self.id:
                    raise
                self._refused(exc)
            except Unreachable as exc:
                if not self.id or exc.code == "not_primer":
                    raise
                self._unheard(exc)
            if self.id and (state := self._look()):
                return state
            # The same key: the server answers about the first start, it does not start again.
            if not self.id and self._silent():
                raise self._gone("the stream broke before the start was confirmed")
            pause = _FAST_S if self._seen > seen else pause
            self.app.sleep(pause)
            pause = min(_SLOW_S, pause * 2)

    @property
    def _seen(self) -> int:
        return sum(self.offset.values())

    def _stream(self, body: dict[str, Any], key: str) -> dict[str, Any]:
        import requests

        headers = {"Accept": "application/x-ndjson, application/json", "Idempotency-Key": key}
        response = self.app.client.open("POST", self._path, body=body, headers=headers, silence_s=_SILENCE_S)
        with response:
            if "ndjson" not in response.headers.get("Content-Type", ""):
                return self._plain(self.app.client.body_of(response))
            try:
                for line in _lines(response.iter_content(None)):
                    result = self._line(line)
                    if result is not None:
                        return result
            except requests.RequestException as exc:
                raise _Broken from exc
        raise _Broken

    def _plain(self, value: Any) -> dict[str, Any]:
        """An answer in one piece: the id of a running exec, or a result with its output."""
        if not isinstance(value, dict):
            raise not_primer("an object was due")
        self.id = str(value.get("id") or self.id)
        if not value.get("ended_by"):
            return value if value.get("background") else self.resume()
        return self.resume()

    def _line(self, line: bytes) -> dict[str, Any] | None:
        self._heard = self.app.clock()
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise not_primer("a line of the output is not JSON") from exc
        if not isinstance(value, dict):
            raise not_primer("an object was due")
        if isinstance(value.get("error"), dict):
            failure = ApiError(int(value["error"].get("status") or 500), value["error"])
            begun = self.id and (failure.status == 404 or failure.code in NOT_THERE)
            raise self._forgotten(failure) if begun else failure
        result = value.get("result")
        if isinstance(result, dict):
            self.id = str(result.get("id") or self.id)
            self._check_whole(result)
            return result
        stream = value.get("stream")
        if stream in _STREAMS:
            gap = value.get("gap")
            if _is_range(gap):
                self._fill(stream, upto=gap[1])
            elif "data" in value:
                self._chunk(stream, value)
        elif value.get("id"):
            self.id = str(value["id"])
        return None

    def _chunk(self, stream: str, value: dict[str, Any]) -> None:
        data, offset = _bytes_of(value), value.get("offset", self.offset[stream])
        if not isinstance(offset, int):
            raise not_primer("an offset was due")
        if offset > self.offset[stream]:
            self._fill(stream, upto=offset)
        data = data[max(0, self.offset[stream] - offset) :]
        # The offset first: a Ctrl-C in answer to what was just shown must not show it again.
        self.offset[stream] += len(data)
        self.sink.write(stream, data)

    def _check_whole(self, result: dict[str, Any]) -> None:
        """Whatever the live stream left out is still kept by the server."""
        for stream in _STREAMS:
            total = result.get(f"{stream}_bytes")
            if isinstance(total, int) and total > self.offset[stream]:
                self._fill(stream, upto=total)

    def _fill(self, stream: str, upto: int) -> None:
        """Reads kept output up to an offset; what is not kept is counted as lost."""
        while self.offset[stream] < upto:
            before = self.offset[stream]
            if not self._page(stream, upto - before) or self.offset[stream] <= before:
                self.leave(stream, upto)

    def _page(self, stream: str, limit: int = _PAGE) -> bool:
        """One page of kept output from the offset on; False when there is nothing more now."""
        path = f"{self._path}/{segment(self.id)}/output"
        page = self.app.client.get(
            path, stream=stream, offset=self.offset[stream], limit=max(1, min(limit, _PAGE))
        ).object
        data, start = _bytes_of(page), self.offset[stream]
        following = page.get("next_offset")
        self.offset[stream] = max(following if isinstance(following, int) else 0, start + len(data))
        self.sink.write(stream, data)
        if _is_range(page.get("gap")):
            self.lost[stream] += max(0, self.offset[stream] - start - len(data))
        return bool(data) or self.offset[stream] > start

    def resume(self) -> dict[str, Any]:
        """Follows by offset until the exec has ended; raises with exit 125 when the server is gone for a minute."""
        pause, seen = _FAST_S, self._seen
        while not (state := self._look()):
            pause = _FAST_S if self._seen > seen else min(_SLOW_S, pause * 2)
            seen = self._seen
            self.app.sleep(pause)
        return state

    def _look(self) -> dict[str, Any] | None:
        """Shows what there is by now, and returns the result of an exec that has ended."""
        try:
            state = self.app.client.get(f"{self._path}/{segment(self.id)}").object
            for stream in _STREAMS:
                self.page_all(stream)
            self._heard = self.app.clock()
        except ApiError as exc:
            self._refused(exc)
            return None
        except Unreachable as exc:
            self._unheard(exc)
            return None
        return state if state.get("ended_by") or state.get("state") == "ended" else None

    def _refused(self, exc: ApiError) -> None:
        """Raises for an answer that will not change: the exec is forgotten, or not ours to see. A 5xx may pass."""
        if exc.status == 404 or exc.code in NOT_THERE:
            raise self._forgotten(exc) from exc
        if exc.status < 500 or self._silent():
            raise self._gone(exc.lines[0]) from exc

    def _unheard(self, exc: Unreachable) -> None:
        """Raises unless the server is there and only slow, for less than a minute."""
        if exc.code != "timeout" or self._silent():
            raise self._gone(exc.lines[0]) from exc

    def _silent(self) -> bool:
        return self.app.clock() - self._heard > AWAY_S

    def _gone(self, why: str) -> CliError:
        line = f"{why.removesuffix('.')}; {self.id or 'the exec'} in {self.workspace} may still run"
        return CliError(line, exit=Exit.EXEC_LOST)

    def _forgotten(self, exc: ApiError) -> CliError:
        """The server knows the exec no more: what became of its workspace, and nothing that nobody knows."""
        return CliError(self.whereabouts(), exit=Exit.EXEC_LOST, code=exc.code)

    def whereabouts(self) -> str:
        """What became of the workspace of an exec that is lost; the server may need a moment to notice."""
        ref, deadline = Ref(WORKSPACE, self.workspace), self.app.clock() + _NOTICE_S
        while True:
            try:
                item = self.app.client.get(self.app.path(ref)).object
            except ApiError as failure:
                return f"workspace {ref.id} was deleted" if failure.status == 404 else failure.lines[0]
            except CliError as failure:
                return failure.lines[0]
            phase = str(item.get("phase") or "unknown")
            if phase not in ("running", "starting"):
                why = str(item.get("phase_detail") or item.get("phase_reason") or "").removesuffix(".")
                return f"workspace {ref.id} is {phase}" + (f": {why}" if why else "")
            if self.app.clock() >= deadline:
                return f"workspace {ref.id} is {phase} and has no {self.id} any more; how it ended is not known"
            self.app.sleep(0.5)


def piped_input(console: Console) -> bytes | None:
    """All of stdin when it is a pipe or a file, else None; raises when it is more than 8 MiB."""
    if console.in_tty:
        return None
    try:
        number = console.inp.fileno()
        import os

        mode = os.fstat(number).st_mode
    except (OSError, ValueError):
        return None
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return None
    if stat.S_ISFIFO(mode) and not select.select([number], [], [], 2.0)[0]:
        console.note("primectl: reading standard input until it ends; </dev/null sends none")
    data = console.inp.read(STDIN_CAP + 1)
    if len(data) > STDIN_CAP:
        raise CliError(
            "standard input is larger than 8 MiB", exit=Exit.USAGE, hint="upload it: primectl workspace files put"
        )
    return data


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines of a stream, each no longer than a JSON answer may be."""
    held = b""
    for piece in pieces:
        held += piece
        *whole, held = held.split(b"\n")
        yield from (line for line in whole if line.strip())
        if len(held) > MAX_JSON:
            raise not_primer("a line of the output is larger than 64 MiB")
    if held.strip():
        yield held


def _bytes_of(value: dict[str, Any]) -> bytes:
    data = value.get("data")
    if not isinstance(data, str):
        return b""
    if value.get("encoding") == "base64":
        try:
            return base64.b64decode(data, validate=True)
        except ValueError as exc:
            raise not_primer("output is not base64") from exc
    return data.encode("utf-8", "surrogatepass")


def _is_range(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(n, int) for n in value)
