"""Exec: commands in a workspace, their history and their output."""

from __future__ import annotations

import base64
import codecs
import json
import shlex
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.shortcuts import render

from accounts.pages.ansi import Ansi
from accounts.pages.door import Door
from accounts.pages.text import CUT
from accounts.pages.views import UNPROCESSABLE, done, is_fragment
from accounts.permissions import may_change
from primer_site import problems
from primer_site.errors import FieldError, Invalid, PrimerError
from workspaces import exec_output, execs
from workspaces.exec_api import ExecViewSet
from workspaces.exec_rows import STREAMS
from workspaces.exec_shapes import state
from workspaces.execution import Stream, still_running
from workspaces.models import Exec, ExecState
from workspaces.pages.verdicts import verdict
from workspaces.pages.viewer import INLINE, WIDE
from workspaces.pages.workspaces import WORKSPACES
from workspaces.streaming import on_loop, while_signed_in

HISTORY = 30
SHOWN_WHOLE = 5  # of the latest runs with their output
SHOWN = 200_000  # bytes of a stream among others on the page
WHOLE = 2 * 1024**2  # and on a page of its own
RAW_PIECE = 1024**2


def recent(request: HttpRequest, id: str) -> list[dict[str, Any]]:
    """The latest runs in a workspace, a deleted one too, newest first, without their output."""
    rows = Door(ExecViewSet, request).view("GET", "list", id=id).get_queryset().order_by("-created_at")[:HISTORY]
    return [drawn(one) for one in rows]


def drawn(row: Exec) -> dict[str, Any]:
    facts = {"row": row, **state(row)}
    argv = facts["argv"]
    facts["command"] = argv[2] if len(argv) == 3 and argv[:2] == ["sh", "-c"] else shlex.join(argv)
    facts["env_names"] = row.request.get("env_names", [])
    facts["running"] = row.state == ExecState.RUNNING
    facts["chip"] = ("exec", "running", "") if facts["running"] else verdict(facts)
    facts["left"] = still_running(len(facts["survivors"])) if facts["survivors"] else ""
    facts["proof"] = [] if facts["running"] else [one for one in (facts["evidence"] or {}).items() if one[1]]
    return facts


def output(request: HttpRequest, row: Exec, most: int, width: int = CUT) -> dict[str, Any]:
    """Both streams as the page shows them, at most `most` bytes of each, with how much of each there is by now.

    Of a line `width` characters are drawn: `cut` says whether one has more, `odd` whether bytes of it are no UTF-8.
    """
    found: dict[str, Any] = {"outputs": []}
    for stream in STREAMS:
        shown = _shown(request, row, stream, most, width)
        found[f"{stream}_bytes"] = shown["total"]
        if shown["total"]:
            found["outputs"].append({"stream": stream, **shown})
    return found


def _shown(request: HttpRequest, row: Exec, stream: Stream, most: int, width: int) -> dict[str, Any]:
    """The beginning and the end of a stream as safe HTML; `gap` is what lies between them and is not shown."""
    first = _stretch(request, row, stream, 0, most)
    total = max(getattr(row, f"{stream}_bytes"), first.end, _seen(row, stream))
    if first.offset == 0 and first.end >= total:
        return {"total": total, **_drawn(first.data, width=width, ends=row.state != ExecState.RUNNING)}
    head = first.data[: most - most // 4] if first.offset == 0 else b""
    last = _stretch(request, row, stream, max(len(head), total - most // 4), most // 4)
    if last.offset <= len(head):  # a running one: the second read went on where the first had ended
        return {"total": total, **_drawn(head + last.data, width=width, ends=False)}
    lost = getattr(row, f"{stream}_gap")
    return {
        "total": total, "gap": (len(head), last.offset), "left_out": last.offset - len(head), "lost": lost[1] - lost[0] if lost else 0,
        **_drawn(head, last.data, width=width, ends=False),
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


def seen(row: Exec) -> str:
    """How much a page that shows all of it has seen: drawn anew is only what it has not."""
    return "-".join(str(max(getattr(row, f"{stream}_bytes"), _seen(row, stream))) for stream in STREAMS)


def _seen(row: Exec, stream: Stream) -> int:
    """Bytes that a run of this process has printed so far; 0 for any other."""
    run = execs.live(row.pk)
    return run.keepers[stream].total if run is not None else 0


def _drawn(head: bytes, tail: bytes = b"", *, width: int, ends: bool) -> dict[str, Any]:
    """Two pieces as safe HTML; the first may be cut in the middle of a character unless it `ends` the stream, the second begins in one."""
    texts = [codecs.getincrementaldecoder("utf-8")("replace").decode(head, final=ends)]
    texts.append(tail.decode("utf-8", "replace").lstrip("\ufffd"))
    printed = sum(piece.count("\ufffd".encode()) for piece in (head, tail))
    colours = [Ansi(width), Ansi(width)]
    html = [colour.feed(text) for colour, text in zip(colours, texts, strict=True)]
    odd = sum(text.count("\ufffd") for text in texts) > printed
    return {"head": html[0], "tail": html[1], "odd": odd, "cut": any(colour.cut for colour in colours)}


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


def _row(request: HttpRequest, id: str, exec_id: str) -> Exec:
    found: Exec = Door(ExecViewSet, request).view("GET", "retrieve", id=id, exec_id=exec_id)._row(id, exec_id)
    return found


def raw(request: HttpRequest, id: str, exec_id: str) -> HttpResponse:
    """All that is kept of one stream, as a file. It is hostile: nothing but a download."""
    stream = next((one for one in STREAMS if one == request.GET.get("stream", "stdout")), None)
    if stream is None:
        raise Invalid("stream is not valid.", errors=[FieldError("stream", "must be stdout or stderr")])
    row, user = _row(request, id, exec_id), int(request.user.pk or 0)
    name = f"{exec_id}-{stream}.txt" if exec_id.replace("-", "").isalnum() else f"{stream}.txt"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store", **INLINE}
    body = on_loop(while_signed_in(kept(row.pk, stream), user, None))
    # Both are answers; what wraps a page touches only headers.
    return cast(HttpResponse, StreamingHttpResponse(body, content_type="application/octet-stream", headers=headers))


async def kept(exec_pk: int, stream: Stream) -> AsyncGenerator[bytes, None]:
    """What is kept of a stream, byte-exact, a piece at a time: all of it may be 64 MiB."""
    offset = 0
    while True:
        found = await exec_output.read(exec_pk, stream, offset, RAW_PIECE)
        if not found.data:
            return
        yield found.data
        offset = found.next_offset


def environment(text: str) -> dict[str, str]:
    """Lines `NAME=value` as an environment; a line without a sign goes on as it is, and the API says what is wrong with it."""
    pairs = (line.partition("=") for line in text.replace("\r\n", "\n").split("\n") if line.strip())
    return {name.strip(): value for name, _, value in pairs}


def console(request: HttpRequest, id: str) -> HttpResponse:
    """The tab; a POST starts a command and comes back to it."""
    return WORKSPACES.or_gone(request, id, lambda: _console(request, id))


def _console(request: HttpRequest, id: str) -> HttpResponse:
    row = WORKSPACES.door(request).get(id)
    error: PrimerError | None = None
    if request.method == "POST":
        try:
            timeout = request.POST.get("timeout_s", "").strip()
            body: dict[str, Any] = {
                "command": request.POST.get("command", "").replace("\r\n", "\n"),
                "background": "wait" not in request.POST,  # without scripts nothing would show the result later
            }
            body |= {"cwd": request.POST.get("cwd", "").strip()} | ({"timeout_s": timeout} if timeout else {})
            body |= {"env": environment(request.POST.get("env", ""))}
            answer = Door(ExecViewSet, request).call("POST", "create", data=body, id=id)
            started = getattr(answer, "data", None) or json.loads(answer.content)  # of one that has ended it is bytes
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
    """One run with its output; the part that a running one asks for again, nothing (204) while it prints nothing."""
    row = _row(request, id, exec_id)
    if request.GET.get("seen") == seen(row) and row.state == ExecState.RUNNING and is_fragment(request):
        return HttpResponse(status=204)
    width = WIDE if request.GET.get("wide") == "1" else CUT
    run = {**drawn(row), **output(request, row, SHOWN if is_fragment(request) else WHOLE, width)}
    template = "workspaces/run.html" if is_fragment(request) else "workspaces/run_page.html"
    context = {"run": run, "id": id, "exec_id": exec_id, "wide": width == WIDE, "pages": WORKSPACES, "heading": exec_id}
    context["changeable"] = row.workspace.deleted_at is None and may_change(WORKSPACES.user(request), row.workspace)
    response = render(request, template, context)
    if is_fragment(request) and not run["running"]:
        response.status_code = 286
    return response


def stop(request: HttpRequest, id: str, exec_id: str) -> HttpResponse:
    if request.method != "POST":
        return HttpResponseRedirect(f"/workspaces/{id}/exec/")
    code = Door(ExecViewSet, request).call("DELETE", "destroy", id=id, exec_id=exec_id).status_code
    words = "ended, with everything it started." if code == 204 else "is being ended."
    return done(request, f"{exec_id} {words}", f"/workspaces/{id}/exec/#{exec_id}")
