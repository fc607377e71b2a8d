"""Exec: commands in a workspace, their history and their output."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils.safestring import SafeString

from accounts.pages.ansi import Ansi
from accounts.pages.door import Door
from accounts.pages.views import UNPROCESSABLE, done, is_fragment
from primer_site import problems
from primer_site.errors import FieldError, Invalid, PrimerError
from workspaces import execs
from workspaces.exec_api import ExecViewSet
from workspaces.exec_rows import STREAMS
from workspaces.exec_shapes import state
from workspaces.execution import Stream
from workspaces.models import Exec, ExecState, Workspace
from workspaces.pages.viewer import INLINE
from workspaces.pages.workspaces import WORKSPACES

HISTORY = 30
SHOWN_WHOLE = 5  # of the latest runs with their output
SHOWN = 200_000  # bytes of a stream among others on the page
WHOLE = 2 * 1024**2  # and on a page of its own
RAW_PIECE = 4 * 1024**2


def recent(request: HttpRequest, row: Workspace) -> list[dict[str, Any]]:
    """The latest runs, newest first, without their output."""
    rows = Door(ExecViewSet, request).view("GET", "list", id=row.slug).get_queryset().order_by("-created_at")[:HISTORY]
    return [drawn(one) for one in rows]


def drawn(row: Exec) -> dict[str, Any]:
    facts = {"row": row, **state(row)}
    argv = facts["argv"]
    facts["command"] = argv[2] if len(argv) == 3 and argv[:2] == ["sh", "-c"] else shlex.join(argv)
    facts["env_names"] = row.request.get("env_names", [])
    facts["running"] = row.state == ExecState.RUNNING
    facts["verdict"] = "running" if facts["running"] else row.ended_by
    label = {"exit": f"exit {row.exit_code}", "signal": f"signal {row.signal}"}.get(row.ended_by, "")
    facts["verdict_label"] = label
    facts["failed"] = row.ended_by == "exit" and bool(row.exit_code)
    return facts


def output(request: HttpRequest, row: Exec, most: int) -> dict[str, Any]:
    """Both streams as the page shows them, at most `most` bytes of each, with how much of each there is by now."""
    found: dict[str, Any] = {"outputs": []}
    for stream in STREAMS:
        shown = _shown(request, row, stream, most)
        found[f"{stream}_bytes"] = shown["total"]
        if shown["total"]:
            found["outputs"].append({"stream": stream, **shown})
    return found


def _shown(request: HttpRequest, row: Exec, stream: Stream, most: int) -> dict[str, Any]:
    """The beginning and the end of a stream as safe HTML; `gap` is what lies between them and is not shown."""
    first = _stretch(request, row, stream, 0, most)
    total = max(getattr(row, f"{stream}_bytes"), first.end, _seen(row, stream))
    if first.offset == 0 and first.end >= total:
        return {"total": total, "head": _html(first.data)}
    head = first.data[: most - most // 4] if first.offset == 0 else b""
    last = _stretch(request, row, stream, max(len(head), total - most // 4), most // 4)
    if last.offset <= len(head):  # a running one: the second read went on where the first had ended
        return {"total": total, "head": _html(head + last.data)}
    lost = getattr(row, f"{stream}_gap")
    return {
        "total": total, "head": _html(head), "tail": _html(last.data, inside=True), "gap": (len(head), last.offset),
        "left_out": last.offset - len(head), "lost": lost[1] - lost[0] if lost else 0,
    }  # fmt: skip


def _stretch(request: HttpRequest, row: Exec, stream: Stream, offset: int, limit: int) -> Piece:
    """What is kept from `offset` on, at most `limit` bytes without a gap: what of it is stored and what is not are two reads."""
    found = _page(request, row, stream, offset, limit)
    running = row.state == ExecState.RUNNING
    while running and found.data and len(found.data) < limit:
        more = _page(request, row, stream, found.end, limit - len(found.data))
        if more.offset != found.end or not more.data:
            break
        found = Piece(found.offset, found.data + more.data, more.end)
    return found


def _seen(row: Exec, stream: Stream) -> int:
    """Bytes that a run of this process has printed so far; 0 for any other."""
    run = execs.live(row.pk)
    return run.keepers[stream].total if run is not None else 0


def _html(data: bytes, *, inside: bool = False) -> SafeString:
    """As safe HTML; `inside` when it may begin in the middle of a character."""
    text = data.decode("utf-8", "replace")
    return Ansi().feed(text.lstrip("\ufffd") if inside else text)


@dataclass(frozen=True, slots=True)
class Piece:
    """Kept bytes at `offset`, and where they end in the stream."""

    offset: int
    data: bytes
    end: int


def _page(request: HttpRequest, row: Exec, stream: Stream, offset: int, limit: int) -> Piece:
    query = {"stream": stream, "offset": str(offset), "limit": str(limit)}
    ids = {"id": row.workspace.slug, "exec_id": row.slug}
    data = Door(ExecViewSet, request).call("GET", "output", **ids, query=query).data
    found = base64.b64decode(data["data"]) if data["encoding"] == "base64" else data["data"].encode()
    return Piece(data["offset"], found, data["next_offset"])


def kept(request: HttpRequest, row: Exec, stream: Stream, piece: int) -> Iterator[bytes]:
    """What is kept of a stream, byte-exact, in pieces of at most `piece` bytes; the first may be empty."""
    offset = 0
    while True:
        found = _page(request, row, stream, offset, piece)
        yield found.data
        if found.end == offset:
            return
        offset = found.end


def _row(request: HttpRequest, id: str, exec_id: str) -> Exec:
    found: Exec = Door(ExecViewSet, request).view("GET", "retrieve", id=id, exec_id=exec_id)._row(id, exec_id)
    return found


def raw(request: HttpRequest, id: str, exec_id: str) -> HttpResponse:
    """All that is kept of one stream, as a file. It is hostile: nothing but a download."""
    stream = next((one for one in STREAMS if one == request.GET.get("stream", "stdout")), None)
    if stream is None:
        raise Invalid("stream is not valid.", errors=[FieldError("stream", "must be stdout or stderr")])
    data = b"".join(kept(request, _row(request, id, exec_id), stream, RAW_PIECE))
    name = f"{exec_id}-{stream}.txt" if exec_id.replace("-", "").isalnum() else f"{stream}.txt"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store", **INLINE}
    return HttpResponse(data, content_type="application/octet-stream", headers=headers)


def environment(text: str) -> dict[str, str]:
    """Lines `NAME=value` as an environment; a line without a sign goes on as it is, and the API says what is wrong with it."""
    pairs = (line.partition("=") for line in text.replace("\r\n", "\n").split("\n") if line.strip())
    return {name.strip(): value for name, _, value in pairs}


def console(request: HttpRequest, id: str) -> HttpResponse:
    """The tab; a POST starts a command and comes back to it."""
    row = WORKSPACES.door(request).get(id)
    error: PrimerError | None = None
    if request.method == "POST":
        try:
            timeout = request.POST.get("timeout_s", "").strip()
            body: dict[str, Any] = {
                "command": request.POST.get("command", "").replace("\r\n", "\n"),
                "background": True,
            }
            body |= {"cwd": request.POST.get("cwd", "").strip()} | ({"timeout_s": timeout} if timeout else {})
            body |= {"env": environment(request.POST.get("env", ""))}
            started = Door(ExecViewSet, request).call("POST", "create", data=body, id=id).data
            return HttpResponseRedirect(f"/workspaces/{id}/exec/#{started['id']}", status=303)
        except Exception as exc:
            error = problems.to_error(exc)
            if error.code == "internal":
                raise
    context = WORKSPACES.detail_context(request, row, "exec")
    runs = context["runs"]
    for run in runs[:SHOWN_WHOLE]:
        run.update(output(request, run.pop("row"), SHOWN))
    errors = {one.field: one.message for one in error.errors} if error else {}
    typed = {name: request.POST.get(name, "") for name in ("command", "cwd", "timeout_s", "env")} if error else {}
    context |= {"error": error, "errors": errors, "typed": typed, "runs": runs[::-1]}
    return render(request, WORKSPACES.detail_template, context, status=UNPROCESSABLE if error else 200)


def one(request: HttpRequest, id: str, exec_id: str) -> HttpResponse:
    """One run with its output; the part that a running one asks for again."""
    row = _row(request, id, exec_id)
    run = {**drawn(row), **output(request, row, SHOWN if is_fragment(request) else WHOLE)}
    template = "workspaces/run.html" if is_fragment(request) else "workspaces/run_page.html"
    response = render(
        request, template, {"run": run, "id": id, "exec_id": exec_id, "pages": WORKSPACES, "heading": exec_id}
    )
    if is_fragment(request) and not run["running"]:
        response.status_code = 286
    return response


def stop(request: HttpRequest, id: str, exec_id: str) -> HttpResponse:
    if request.method != "POST":
        return HttpResponseRedirect(f"/workspaces/{id}/exec/")
    code = Door(ExecViewSet, request).call("DELETE", "destroy", id=id, exec_id=exec_id).status_code
    words = "ended, with everything it started." if code == 204 else "is being ended."
    return done(request, f"{exec_id} {words}", f"/workspaces/{id}/exec/#{exec_id}")
