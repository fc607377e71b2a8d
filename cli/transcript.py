"""A session on the screen: the answer on stdout, the calls for people on stderr, the verdict never read from text."""

from __future__ import annotations

import shlex
from typing import Any, TypeGuard

from cli.output import Console, InertStream, encoded, inert
from cli.stream import Event
from cli.text import dig, seconds, size

MOST_LINES = 200


class Transcript:
    """Shows events as they come. `live_text` streams the assistant's text to stdout (a terminal); calls are shown on
    stderr when that is a terminal."""

    def __init__(self, console: Console, session_id: str, *, live_text: bool) -> None:
        self.console = console
        self.session_id = session_id
        self.live_text = live_text
        self.said = False  # some assistant text is on stdout
        self._delta = InertStream(colour=False)
        self._streamed = False  # deltas of the message now open
        self._booting = False
        self._failed = ""  # what the error event of a run said that failed
        self._lines: dict[str, int] = {}
        self._rest: dict[str, str] = {}

    def show(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event['kind']}", None)
        if handler is not None:
            handler(event["data"])

    def _on_text_delta(self, data: dict[str, Any]) -> None:
        if self.live_text:
            shown = self._delta.feed(encoded(str(data.get("text", ""))))
            self.console.write(encoded(shown))
            self._streamed = self.said = True

    def _on_assistant_message(self, data: dict[str, Any]) -> None:
        text = data.get("text")
        if self.live_text:
            if self._streamed:
                self.console.write(encoded(self._delta.feed(b"", final=True)))
            elif isinstance(text, str) and text:
                self.console.write(encoded(inert(text)))
                self.said = True
            self.console.fresh_line()
        self._streamed = False

    def _on_tool_call(self, data: dict[str, Any]) -> None:
        self._tell(f"  {call_line(data)}")

    def _on_tool_output(self, data: dict[str, Any]) -> None:
        call, text = str(data.get("call_id")), data.get("text")
        if not isinstance(text, str):
            self._tell("  | (output left out)")
            return
        whole = self._rest.pop(call, "") + text
        *lines, rest = whole.split("\n")
        if rest:
            self._rest[call] = rest
        for line in lines:
            self._output_line(call, line)

    def _output_line(self, call: str, line: str) -> None:
        count = self._lines.get(call, 0) + 1
        self._lines[call] = count
        if count <= MOST_LINES:
            self._tell(f"  | {line.removesuffix(chr(13))}", colour=True)
        elif count == MOST_LINES + 1:
            self._tell(f"  | … the rest: primectl session events {self.session_id} -o jsonl")

    def _on_tool_result(self, data: dict[str, Any]) -> None:
        call = str(data.get("call_id"))
        rest = self._rest.pop(call, "")
        if rest:
            self._output_line(call, rest)
        line = verdict_line(data, self.console.dot)
        if line:
            self._tell(f"  {line}")

    def _on_workspace_phase(self, data: dict[str, Any]) -> None:
        if data.get("phase") == "running" and not self._booting:
            return  # it ran before: nothing happened
        self._booting = data.get("phase") != "running"
        reason = f": {data['reason']}" if data.get("reason") else ""
        self._tell(f"  workspace {data.get('phase')}{reason}")

    def _on_warning(self, data: dict[str, Any]) -> None:
        self.console.fresh_line()
        text = str(data.get("message") or data.get("code"))
        told = "retrying in" in text.lower()  # the server says it itself, with the number of the attempt
        retry = f" (again in {data['retry_in_s']} s)" if data.get("retry_in_s") and not told else ""
        self.console.note(f"warning: {text}{retry}")

    def _on_error(self, data: dict[str, Any]) -> None:
        self._failed = str(data.get("message") or data.get("code"))  # of the last run, the ending says it

    def _on_user_message(self, data: dict[str, Any]) -> None:
        """Where the session went on: what ended the run before is told here, since no ending follows."""
        if self._failed:
            self.console.fresh_line()
            self.console.note(f"error: {self._failed}")
            self._failed = ""

    def _tell(self, line: str, *, colour: bool = False) -> None:
        if not self.console.err_tty or self.console.quiet:
            return
        self.console.fresh_line()
        if not self.console.unicode:
            line = line.replace("…", "...") if not colour else line
        if colour:
            shown = inert(line.replace("\n", "\\n"), colour=self.console.colours(True))
            self.console.block(shown + ("\x1b[0m" if "\x1b" in shown else "") + "\n", colour=True)
        else:
            self.console.note(line)


def call_line(data: dict[str, Any]) -> str:
    """`$ python snippet.py`, `write snippet.py  13 B`, `read notes.txt`."""
    name = str(data.get("name", "")).removeprefix("workspace__")
    arguments = data.get("arguments")
    args: dict[str, Any] = arguments if isinstance(arguments, dict) else {}
    if name == "exec":
        argv = args.get("argv")
        line = shlex.join(map(str, argv)) if isinstance(argv, list) else str(args.get("command", ""))
        return f"$ {line}"
    about = next((str(args[key]) for key in ("path", "pattern") if args.get(key)), "")
    content = args.get("content")
    if isinstance(content, str):
        return f"{name} {about}  {size(len(content.encode('utf-8', 'replace')))}"
    return f"{name} {about}".rstrip()


def verdict_line(data: dict[str, Any], dot: str) -> str:
    """How a call ended, from its verdict; empty for a call that ran nothing and succeeded."""
    ended_by = data.get("ended_by")
    limit = dig(data, "evidence.limit")
    match ended_by:
        case "exit":
            took = data.get("duration_ms")
            return f"exit {data.get('exit_code')}" + (f" {dot} {seconds(took / 1000)}" if _number(took) else "")
        case "timeout":
            return "timeout" + (f" after {seconds(limit)}" if _number(limit) else "")
        case "oom":
            return "oom" + (f": limit {size(limit)}" if _number(limit) else "")
        case "pids":
            return "pids" + (f": limit {limit:g}" if _number(limit) else "")
        case "disk":
            return "disk full"
        case "output_cap":
            return "output cap" + (f" {size(limit)}" if _number(limit) else "")
        case "signal":
            return f"signal {signal_of(data)}"
        case "cancelled":
            return "cancelled"
        case "lost":
            return "lost" + (f": {data['text']}" if data.get("text") else "")
    if data.get("ok") is False:
        return f"failed: {str(data.get('text', '')).strip().splitlines()[0][:200] if data.get('text') else 'no reason given'}"
    return ""


def signal_of(data: dict[str, Any]) -> int:
    """The signal number of a result that ended by one; 9 when nothing says which."""
    for value in (data.get("signal"), data.get("exit_code")):
        if isinstance(value, int) and value != 0:
            return abs(value) - 128 if abs(value) > 128 else abs(value)
    return 9


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
