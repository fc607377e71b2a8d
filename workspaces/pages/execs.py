"""Exec: commands in a workspace, their history and their output."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render

from accounts.pages.ansi import Ansi
from accounts.pages.door import Door
from accounts.pages.views import UNPROCESSABLE, done, is_fragment
from primer_site import problems
from primer_site.errors import FieldError, Invalid, PrimerError
from workspaces.exec_api import ExecViewSet
from workspaces.exec_shapes import state
from workspaces.models import Exec, ExecState, Workspace
from workspaces.pages.viewer import INLINE
from workspaces.pages.workspaces import WORKSPACES

HISTORY = 30
SHOWN_WHOLE = 5  # of the latest runs with their output
SHOWN = 200_000  # bytes of a stream on the page
RAW_PIECE = 4 * 1024**2
STREAMS = ("stdout", "stderr")


def recent(request: HttpRequest, row: Workspace) -> list[dict[str, Any]]:
    """The latest runs, newest first, without their output."""
    rows = Door(ExecViewSet, request).view("GET", "list", id=row.slug).get_queryset().order_by("-created_at")[:HISTORY]
    return [drawn(one) for one in rows]


def drawn(row: Exec) -> dict[str, Any]:
    facts = state(row)
    argv = facts["argv"]
    facts["command"] = argv[2] if len(argv) == 3 and argv[:2] == ["sh", "-c"] else shlex.join(argv)
    facts["running"] = row.state == ExecState.RUNNING
    facts["verdict"] = "running" if facts["running"] else row.ended_by
    label = {"exit": f"exit {row.exit_code}", "signal": f"signal {row.signal}"}.get(row.ended_by, "")
    facts["verdict_label"] = label
    facts["failed"] = row.ended_by == "exit" and bool(row.exit_code)
    return facts


def output(request: HttpRequest, id: str, exec_id: str) -> dict[str, Any]:
    """What is kept of both streams as safe HTML, up to what a page can show."""
    return {
        stream: Ansi().feed(next(kept(request, id, exec_id, stream, SHOWN)).decode("utf-8", "replace"))
        for stream in STREAMS
    }


def kept(request: HttpRequest, id: str, exec_id: str, stream: str, piece: int) -> Iterator[bytes]:
    """What is kept of a stream, byte-exact, in pieces of at most `piece` bytes; the first may be empty."""
    offset = 0
    while True:
        query = {"stream": stream, "offset": str(offset), "limit": str(piece)}
        data = Door(ExecViewSet, request).call("GET", "output", id=id, exec_id=exec_id, query=query).data
        yield base64.b64decode(data["data"]) if data["encoding"] == "base64" else data["data"].encode()
        if data["next_offset"] == offset:
            return
        offset = data["next_offset"]


def raw(request: HttpRequest, id: str, exec_id: str) -> HttpResponse:
    """All that is kept of one stream, as a file. It is hostile: nothing but a download."""
    stream = request.GET.get("stream", "stdout")
    if stream not in STREAMS:
        raise Invalid("stream is not valid.", errors=[FieldError("stream", "must be stdout or stderr")])
    data = b"".join(kept(request, id, exec_id, stream, RAW_PIECE))
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
        run.update(output(request, id, run["id"]))
    errors = {one.field: one.message for one in error.errors} if error else {}
    typed = {name: request.POST.get(name, "") for name in ("command", "cwd", "timeout_s", "env")} if error else {}
    context |= {"error": error, "errors": errors, "typed": typed, "runs": runs[::-1]}
    return render(request, WORKSPACES.detail_template, context, status=UNPROCESSABLE if error else 200)


def one(request: HttpRequest, id: str, exec_id: str) -> HttpResponse:
    """One run with its output; the part that a running one asks for again."""
    view = Door(ExecViewSet, request).view("GET", "retrieve", id=id, exec_id=exec_id)
    row = view._row(id, exec_id)
    run = {**drawn(row), **output(request, id, exec_id)}
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
