"""Shapes of runs in the API: what may be asked, and how a result is shown."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from typing import Any

from rest_framework import serializers

from accounts.rest import StrictSerializer
from primer_site.errors import PrimerError
from workspaces import exec_rows, execs
from workspaces.exec_output import Page
from workspaces.execs import ExecFinished
from workspaces.execution import (
    DEFAULT_KEEP_BYTES,
    DEFAULT_TIMEOUT_S,
    MAX_KEEP_BYTES,
    OUTPUT_KILL_BYTES,
    ExecOutcome,
    ExecRequest,
    OutputChunk,
    Stream,
)
from workspaces.fields import PlainEnvField, decode_base64
from workspaces.models import ENDED_BY, Exec, ExecState
from workspaces.output import Decoder, Kept, as_text, is_costly

MAX_TIMEOUT_S = 24 * 3600
STDIN_BYTES = 16 * 1024 * 1024
ARGUMENTS = 10_000
LARGE_BYTES = 1024 * 1024
_large = threading.BoundedSemaphore(2)


class ExecRequestSerializer(StrictSerializer):
    """A program (`argv`) or a shell line (`command`). Sizes are bytes, times seconds."""

    argv = serializers.ListField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False), required=False, max_length=ARGUMENTS
    )
    command = serializers.CharField(required=False, trim_whitespace=False)
    cwd = serializers.CharField(default="", allow_blank=True, trim_whitespace=False, max_length=4096)
    env = PlainEnvField(default=dict)
    stdin = serializers.CharField(required=False, allow_blank=True, trim_whitespace=False)
    stdin_base64 = serializers.CharField(required=False, allow_blank=True)
    timeout_s = serializers.FloatField(default=DEFAULT_TIMEOUT_S, min_value=0.1, max_value=MAX_TIMEOUT_S)
    max_output_bytes = serializers.IntegerField(
        default=DEFAULT_KEEP_BYTES, min_value=0, max_value=MAX_KEEP_BYTES, help_text="What is kept of each stream."
    )
    output_kill_bytes = serializers.IntegerField(
        default=OUTPUT_KILL_BYTES, min_value=1, max_value=OUTPUT_KILL_BYTES, help_text="Ends the program above it."
    )
    background = serializers.BooleanField(default=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("argv" in attrs) == ("command" in attrs):
            raise serializers.ValidationError({"argv": ["must be given, or command, and not both"]})
        if "argv" in attrs and (not attrs["argv"] or not attrs["argv"][0]):
            raise serializers.ValidationError({"argv": ["must name a program"]})
        if "stdin" in attrs and "stdin_base64" in attrs:
            raise serializers.ValidationError({"stdin": ["must not be given beside stdin_base64"]})
        raw = attrs.get("stdin", "").encode() or decode_base64(attrs.get("stdin_base64", ""), "stdin_base64")
        if len(raw) > STDIN_BYTES:
            raise serializers.ValidationError({"stdin": [f"must have at most {STDIN_BYTES} bytes"]})
        return {**attrs, "raw_stdin": raw}


_request = ExecRequestSerializer()  # its fields, made once, hold nothing of what they check


def checked(data: Any) -> dict[str, Any]:
    """The valid request in a body; raises `ValidationError`."""
    if not isinstance(data, dict):
        _request.to_internal_value(data)  # says so
    valid: dict[str, Any] = _request.run_validation(data)
    return valid


def to_request(data: dict[str, Any], exec_id: str) -> ExecRequest:
    return ExecRequest(
        id=exec_id,
        argv=tuple(data["argv"]) if "argv" in data else ("sh", "-c", data["command"]),
        cwd=data["cwd"], env=data["env"], stdin=data["raw_stdin"], timeout_s=data["timeout_s"],
        output_kill_bytes=data["output_kill_bytes"],
    )  # fmt: skip


# For the OpenAPI schema: answers are built below, since they are on the hot path.


class GapField(serializers.ListField):
    child = serializers.IntegerField()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(min_length=2, max_length=2, allow_null=True, **kwargs)


class EvidenceSerializer(StrictSerializer):
    oom_kill = serializers.IntegerField()
    pids_max = serializers.IntegerField()
    disk = serializers.ChoiceField(["sigxfsz", "enospc", "watcher"], allow_null=True)
    limit = serializers.FloatField(allow_null=True)
    shared = serializers.BooleanField()
    cancelled_by = serializers.CharField(allow_null=True)


class UsageSerializer(StrictSerializer):
    cpu_ms = serializers.FloatField()
    max_rss_bytes = serializers.IntegerField()


class SurvivorSerializer(StrictSerializer):
    pid = serializers.IntegerField()
    command = serializers.CharField()


class ExecStateSerializer(StrictSerializer):
    """A run; the fields of its end are null while it runs."""

    id = serializers.CharField()
    workspace_id = serializers.CharField()
    session_id = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(ExecState.choices)
    argv = serializers.ListField(child=serializers.CharField())
    cwd = serializers.CharField()
    timeout_s = serializers.FloatField()
    background = serializers.BooleanField()
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    signal = serializers.IntegerField(allow_null=True)
    ended_by = serializers.ChoiceField([(name, name) for name in ENDED_BY], allow_null=True)
    error = serializers.DictField(allow_null=True)
    evidence = EvidenceSerializer(allow_null=True)
    stdout_bytes = serializers.IntegerField()
    stderr_bytes = serializers.IntegerField()
    stdout_gap = GapField()
    stderr_gap = GapField()
    truncated = serializers.BooleanField()
    duration_ms = serializers.FloatField(allow_null=True)
    usage = UsageSerializer()
    survivors = SurvivorSerializer(many=True)


REST = "Null when all that is kept is here. Above 8 MiB of a stream, what is kept goes on here: read it by `/output`."


class ExecResultSerializer(StrictSerializer):
    """The result of a run: kept head and tail of each stream joined, the gaps beside them."""

    id = serializers.CharField()
    exit_code = serializers.IntegerField(allow_null=True)
    signal = serializers.IntegerField(allow_null=True)
    ended_by = serializers.ChoiceField([(name, name) for name in ENDED_BY])
    evidence = EvidenceSerializer()
    stdout = serializers.CharField()
    stderr = serializers.CharField()
    stdout_bytes = serializers.IntegerField()
    stderr_bytes = serializers.IntegerField()
    stdout_gap = GapField()
    stderr_gap = GapField()
    stdout_next_offset = serializers.IntegerField(allow_null=True, help_text=REST)
    stderr_next_offset = serializers.IntegerField(allow_null=True, help_text=REST)
    truncated = serializers.BooleanField()
    encoding = serializers.ChoiceField(["utf-8", "base64"])
    duration_ms = serializers.FloatField()
    usage = UsageSerializer()
    survivors = SurvivorSerializer(many=True)


class ExecRunningSerializer(StrictSerializer):
    id = serializers.CharField()
    state = serializers.ChoiceField(["running"])


class ExecOutputSerializer(StrictSerializer):
    """A page of kept output. `gap` is set when the read met it and went on behind it."""

    stream = serializers.ChoiceField(["stdout", "stderr"])
    data = serializers.CharField()  # type: ignore[assignment]
    encoding = serializers.ChoiceField(["utf-8", "base64"])
    offset = serializers.IntegerField()
    next_offset = serializers.IntegerField()
    gap = GapField()
    ended = serializers.BooleanField(help_text="The run has ended: an empty page is the last one.")


def ending(outcome: ExecOutcome) -> dict[str, Any]:
    return {
        "exit_code": outcome.exit_code, "signal": outcome.signal, "ended_by": outcome.ended_by,
        "evidence": asdict(outcome.evidence), "stdout_bytes": outcome.stdout_bytes, "stderr_bytes": outcome.stderr_bytes,
        "duration_ms": round(outcome.duration_ms, 3),
        "usage": {"cpu_ms": round(outcome.cpu_ms, 3), "max_rss_bytes": outcome.max_rss_bytes},
        "survivors": [asdict(one) for one in outcome.survivors],
    }  # fmt: skip


def result(done: ExecFinished, *, with_output: bool = True) -> dict[str, Any]:
    """The result of a run; without output where that was streamed already."""
    body = {"id": done.exec_id, **ending(done.outcome), "truncated": done.truncated}
    body |= {"stdout_gap": done.stdout.gap, "stderr_gap": done.stderr.gap}
    if not with_output:
        return body
    body |= {"stdout_next_offset": done.stdout.next_offset, "stderr_next_offset": done.stderr.next_offset}
    stdout, stderr = _whole(done.stdout), _whole(done.stderr)
    texts = as_text(stdout), as_text(stderr)
    if texts[0] is None or texts[1] is None:
        coded = [base64.b64encode(kept.data).decode() for kept in (done.stdout, done.stderr)]
        return body | {"stdout": coded[0], "stderr": coded[1], "encoding": "base64"}
    if len(stdout) < len(done.stdout.data):
        body["stdout_next_offset"] -= len(done.stdout.data) - len(stdout)
    if len(stderr) < len(done.stderr.data):
        body["stderr_next_offset"] -= len(done.stderr.data) - len(stderr)
    return body | {"stdout": texts[0], "stderr": texts[1], "encoding": "utf-8"}


def _whole(kept: Kept) -> bytes:
    """Without the beginning of a character that was cut because the rest is elsewhere."""
    if kept.next_offset is None:
        return kept.data
    due, text = Decoder().feed(kept.data)
    return kept.data if text is None else due


def result_body(done: ExecFinished) -> bytes:
    """The same as JSON. A large one takes many times its size while it is made: few are made at once."""
    large = len(done.stdout.data) + len(done.stderr.data) > LARGE_BYTES
    with _large if large else contextlib.nullcontext():
        return json.dumps(result(done), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def state(row: Exec) -> dict[str, Any]:
    """A run as lists and look-ups show it."""
    asked = row.request
    body = {
        "id": row.slug, "workspace_id": row.workspace.slug, "session_id": row.session_id, "state": row.state,
        "argv": asked["argv"], "cwd": asked["cwd"], "timeout_s": asked["timeout_s"], "background": asked["background"],
        "started_at": row.created_at, "ended_at": row.ended_at, "error": row.error,
        "stdout_gap": row.stdout_gap, "stderr_gap": row.stderr_gap,
        "truncated": row.stdout_gap is not None or row.stderr_gap is not None,
    }  # fmt: skip
    shown = ending(exec_rows.outcome_of(row)) | body
    if row.state != ExecState.ENDED:
        shown |= {"ended_by": None, "evidence": None, "duration_ms": None}
        if run := execs.live(row.pk):  # what it has printed so far
            shown |= {f"{stream}_bytes": total for stream, total in run.totals.items()}
    return shown


@dataclass(frozen=True, slots=True)
class Seen:
    """What `If-None-Match` is compared with."""

    etag: str


def etag_of(row: Exec) -> str:
    """The row's ETag; of a run that goes on, also how much it has printed."""
    run = execs.live(row.pk)
    return row.etag if run is None else f'{row.etag[:-1]}.{sum(run.totals.values())}"'


def page(stream: Stream, found: Page) -> dict[str, Any]:
    """A page of output as text where it is UTF-8, cut at a character's border, else as base64."""
    due, text = Decoder().feed(found.data)
    if text is None or (found.data and not due):
        due, text = found.data, None
    return {
        "stream": stream, **coded(due, text), "offset": found.offset, "next_offset": found.offset + len(due),
        "gap": found.gap, "ended": found.ended,
    }  # fmt: skip


def coded(data: bytes, text: str | None) -> dict[str, str]:
    if text is None or is_costly(data):
        return {"data": base64.b64encode(data).decode(), "encoding": "base64"}
    return {"data": text, "encoding": "utf-8"}


class Lines:
    """Live output as NDJSON: no character is cut, and what a slow reader lost is a line of its own."""

    def __init__(self) -> None:
        self._decoders: dict[Stream, Decoder] = {"stdout": Decoder(), "stderr": Decoder()}
        self._offsets: dict[Stream, int] = {"stdout": 0, "stderr": 0}  # of the next byte to be shown

    def feed(self, chunk: OutputChunk) -> bytes:
        name, decoder, lines = chunk.stream, self._decoders[chunk.stream], b""
        held = self._offsets[name] + decoder.waiting
        if chunk.offset > held:
            lines += self.flush(name)
            lines += line({"stream": name, "gap": [held, chunk.offset]})
            self._offsets[name] = chunk.offset
        due, text = decoder.feed(chunk.data)
        if due:
            lines += line({"stream": name, "offset": self._offsets[name], **coded(due, text)})
            self._offsets[name] += len(due)
        return lines

    def flush(self, name: Stream) -> bytes:
        """What is left of a character that never got whole."""
        if not (rest := self._decoders[name].flush()):
            return b""
        shown = line({"stream": name, "offset": self._offsets[name], **coded(rest, None)})
        self._offsets[name] += len(rest)
        return shown

    def end(self, outcome: ExecOutcome) -> bytes:
        """The held rest of both streams, and the gap where a slow reader missed the end."""
        lines = b""
        for name, total in (("stdout", outcome.stdout_bytes), ("stderr", outcome.stderr_bytes)):
            lines += self.flush(name)  # type: ignore[arg-type]
            if total > (at := self._offsets[name]):  # type: ignore[index]
                lines += line({"stream": name, "gap": [at, total]})
        return lines


def line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


async def ndjson(
    exec_pk: int, exec_id: str, chunks: AsyncGenerator[OutputChunk, None], request_id: str
) -> AsyncGenerator[bytes, None]:
    """`{id}`, the output as it comes, then `{result}`, or `{error: <problem>}` for what never started."""
    yield line({"id": exec_id})
    lines = Lines()
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            if shown := lines.feed(chunk):
                yield shown
    try:
        done = await execs.finished(exec_pk, wait_s=60, inline_bytes=0)
    except PrimerError as exc:
        yield line({"error": exc.to_problem(request_id)})
        return
    if done is not None:
        yield lines.end(done.outcome) + line({"result": result(done, with_output=False)})
