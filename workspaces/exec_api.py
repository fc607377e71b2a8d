"""Routes of runs: start, list, look up, end, and their kept output."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.audit import Actor
from accounts.lists import ListOf, refuse_unknown
from accounts.models import Role, Token, User
from accounts.permissions import require_change
from accounts.rest import check_precondition, is_dry, not_modified, request_user
from primer_site import loop
from primer_site.errors import FieldError, Invalid, NotFound, printable
from primer_site.pagination import whole_number
from primer_site.parsing import bad_text
from primer_site.prepared import Prepared
from primer_site.requests import request_id
from workspaces import access, exec_audit, exec_keys, exec_output, execs, services
from workspaces.exec_shapes import (
    ExecOutputSerializer,
    ExecRequestSerializer,
    ExecResultSerializer,
    ExecRunningSerializer,
    ExecStateSerializer,
    Seen,
    checked,
    etag_of,
    ndjson,
    page,
    result_body,
    state,
    to_request,
)
from workspaces.execution import MIB, OutputChunk
from workspaces.models import Exec, Workspace, new_exec_id
from workspaces.runs import Listener, patiently
from workspaces.sandbox_errors import PROGRAM, StartFailure, with_commands
from workspaces.streaming import on_loop, while_signed_in

NDJSON = "application/x-ndjson"
PLAIN_WAIT_S = 300.0  # what one plain POST waits at most
OVER_TIMEOUT_S = 10.0
STARTED_WAIT_S = 10.0  # until a stream begins, so that what cannot start is an ordinary error
CANCEL_WAIT_S = 5.0
CALL_S = 30.0
Begin = Callable[[], Coroutine[Any, Any, execs.Started]]
DRY = OpenApiParameter("dry_run", bool, description="Check the request and the workspace, and run or end nothing.")
KEY = OpenApiParameter("Idempotency-Key", OpenApiTypes.STR, OpenApiParameter.HEADER, description="Never runs twice.")


class AnyAccept(BaseContentNegotiation):
    """Errors are JSON whatever was asked for; the view itself looks for NDJSON."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        from rest_framework.negotiation import DefaultContentNegotiation

        return DefaultContentNegotiation().select_parser(request, parsers)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return JSONRenderer(), "application/json"


def _visible_to(role: str) -> Prepared[Workspace]:
    """The live workspace with this id, for a user of this role."""
    return Prepared(
        lambda slug, user: (
            Workspace.objects.visible_to(User(pk=user, role=role)).only(*access.COLUMNS).filter(slug=slug)
        ),
        slug=str, user=int,
    )  # fmt: skip


_visible = {role: _visible_to(role) for role in Role.values}


def only(request: Request, *names: str) -> None:
    """Refuses query parameters that a route does not know."""
    refuse_unknown(request, list(names))


def visible_workspace(request: Request, slug: str) -> Workspace:
    """The live workspace that the caller may open, or `NotFound`; an admin's look at somebody else's is audited."""
    user = request_user(request)
    found = [] if bad_text(slug) else _visible[user.role].all(slug=slug, user=user.pk)
    if not found:
        raise NotFound(f"There is no workspace {printable(slug)}.")
    row = found[0]
    services.audit_opening(Actor.of(request), row)
    return row


class ExecViewSet(ListOf):
    """Programs that run, or ran, in a workspace."""

    serializer_class = ExecStateSerializer
    content_negotiation_class = AnyAccept
    model = Exec
    queryset = Exec.objects.none()
    etagged = True
    counted = ("create",)  # so many at once in one workspace
    search_fields = ("slug", "request__argv")
    filters = {"state": "state", "session_id": "session_id", "ended_by": "ended_by"}
    lookup_url_kwarg = "exec_id"
    sorts = {"created_at": "created_at", "started_at": "created_at"}

    def get_queryset(self) -> QuerySet[Exec]:
        rows = Exec.objects.visible_to(request_user(self.request)).select_related("workspace__owner")
        return rows.filter(workspace__slug=self.kwargs["id"])

    def _row(self, id: str, exec_id: str) -> Exec:
        row = None if bad_text(id) or bad_text(exec_id) else self.get_queryset().filter(slug=exec_id).first()
        if row is None:
            raise NotFound(f"There is no exec {printable(exec_id)} in workspace {printable(id)}.")
        services.audit_opening(Actor.of(self.request), row)
        return row

    @extend_schema(
        request=ExecRequestSerializer,
        parameters=[KEY, DRY],
        responses={
            200: OpenApiResponse(ExecResultSerializer, "The program ended, however it ended."),
            202: OpenApiResponse(ExecRunningSerializer, "It runs on; read it by its id."),
            204: OpenApiResponse(None, "A dry run: the request and the workspace are fit; nothing ran."),
            (200, NDJSON): OpenApiResponse(OpenApiTypes.STR, "`{id}`, output lines, `{result}`."),
        },
    )
    def create(self, request: Request, id: str) -> Response | HttpResponse | StreamingHttpResponse:
        """Runs a program and answers its result; with `Accept: application/x-ndjson`, its output as it comes."""
        only(request, "dry_run")
        workspace = visible_workspace(request, id)
        user = request_user(request)
        require_change(user, workspace, request.auth)
        asked = checked(request.data)
        if is_dry(request):
            access.refuse(access.facts_of(workspace), start=True)
            return Response(status=204)
        claim = exec_keys.claim(request, user)
        try:
            return _run(request, workspace, asked, claim)
        except BaseException as exc:
            if claim is not None and claim.ours:
                exec_keys.release(claim)
            if isinstance(exc, StartFailure):
                exc.hint_text = with_commands(exc.hint_text, workspace.slug)
            if (
                isinstance(exc, StartFailure) and "command" in asked
            ):  # the program is the shell that stands before the line
                exc.errors = [FieldError("command", e.message) if e.field == PROGRAM else e for e in exc.errors]
            raise

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Runs of a workspace, newest first."""
        visible_workspace(request, kwargs["id"])
        rows = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response([state(row) for row in rows])

    def retrieve(self, request: Request, id: str, exec_id: str) -> Response:
        """One run; also of a deleted workspace."""
        only(request)
        row = self._row(id, exec_id)
        seen = Seen(etag_of(row))
        return not_modified(request, seen) or Response(state(row), headers={"ETag": seen.etag})

    @extend_schema(parameters=[DRY], responses={204: None, 202: OpenApiResponse(None, "It is being ended.")})
    def destroy(self, request: Request, id: str, exec_id: str) -> Response:
        """Ends a program and everything it started; one that has ended stays as it is."""
        only(request, "dry_run")
        row = self._row(id, exec_id)
        require_change(request_user(request), row, request.auth)
        check_precondition(request, row)
        if is_dry(request):
            return Response(status=204)
        ended = False
        try:
            ended = loop.run(_cancel(row.pk, request_user(request).username), CALL_S + CANCEL_WAIT_S)
        finally:  # also when nobody answered in time: it was asked for, and may have happened
            exec_audit.ended(Actor.of(request), row, over=ended)
        return Response(status=204 if ended else 202)

    @extend_schema(
        parameters=[
            OpenApiParameter("stream", str, enum=["stdout", "stderr"], default="stdout", description="Which stream."),
            OpenApiParameter("offset", int, description="In the stream as the program wrote it."),
            OpenApiParameter("limit", int, description="Bytes of one page, at most 4 MiB."),
        ],
        responses={200: ExecOutputSerializer},
    )
    def output(self, request: Request, id: str, exec_id: str) -> Response:
        """A page of kept output, byte-exact, of a running or ended run."""
        only(request, "stream", "offset", "limit")
        row = self._row(id, exec_id)
        stream = request.query_params.get("stream") or "stdout"
        if stream not in ("stdout", "stderr"):
            raise Invalid("stream is not valid.", errors=[FieldError("stream", "must be stdout or stderr")])
        offset = whole_number(request, "offset", 0, 0, 10**15)
        limit = whole_number(request, "limit", 64 * 1024, 1, 4 * MIB)
        found = loop.run(exec_output.read(row.pk, stream, offset, limit), CALL_S)  # type: ignore[arg-type]
        return Response(page(stream, found))  # type: ignore[arg-type]


def _run(
    request: Request, workspace: Workspace, data: dict[str, Any], claim: exec_keys.Claim | None
) -> Response | HttpResponse | StreamingHttpResponse:
    """Starts the program, or joins the run of the key, and answers in the form that was asked for."""
    asked = to_request(data, claim.exec_id if claim else new_exec_id())
    wants_stream = NDJSON in request.headers.get("Accept", "") and not data["background"]
    keep_bytes, facts, by = data["max_output_bytes"], access.facts_of(workspace), Actor.of(request)
    exec_pk, known = loop.write_here(
        execs.store, facts, asked, keep_bytes=keep_bytes, started_by=request_user(request).pk,
        background=data["background"], claim_pk=claim.pk if claim else None,
    )  # fmt: skip

    async def begin() -> execs.Started:
        if known:
            return await execs.join(exec_pk, asked.id)
        # Beside the program, which takes longer; and before the end of the run, which the same thread stores.
        loop.spawn(patiently(exec_audit.started, by, facts, asked, data["background"]), name=f"audit {asked.id}")
        return execs.begin(exec_pk, asked, facts, keep_bytes=keep_bytes, listen=wants_stream)

    if data["background"]:
        started = loop.run(_and_started(begin), execs.START_WAIT_S + CALL_S)
        return Response({"id": started.exec_id, "state": "running"}, status=202)
    if wants_stream:
        started = loop.run(_and_started(begin), execs.START_WAIT_S + CALL_S)
        return _streamed(started, request)
    wait_s = min(asked.timeout_s + OVER_TIMEOUT_S, PLAIN_WAIT_S)
    if (done := loop.run(_and_result(begin, wait_s), wait_s + CALL_S)) is None:
        return Response({"id": asked.id, "state": "running"}, status=202)
    return HttpResponse(result_body(done), content_type="application/json")


async def _and_started(begin: Begin) -> execs.Started:
    """Begins, and waits a moment, so that what cannot start is refused before the answer begins."""
    started = await begin()
    await execs.wait_started(started.exec_pk, STARTED_WAIT_S)
    return started


async def _and_result(begin: Begin, wait_s: float) -> execs.ExecFinished | None:
    started = await begin()
    with contextlib.suppress(execs.Suspended):
        return await execs.finished(started.exec_pk, wait_s)
    return None


def _streamed(started: execs.Started, request: Request) -> StreamingHttpResponse:
    chunks = (
        _live(started.exec_pk, started.listener)
        if started.listener is not None
        else exec_output.follow(started.exec_pk)
    )
    lines = ndjson(started.exec_pk, started.exec_id, chunks, request_id(request._request))
    token_pk = request.auth.pk if isinstance(request.auth, Token) else None
    body = on_loop(while_signed_in(lines, request_user(request).pk, token_pk))
    return StreamingHttpResponse(body, content_type=NDJSON, headers={"Cache-Control": "no-store"})


async def _live(exec_pk: int, listener: Listener) -> AsyncGenerator[OutputChunk, None]:
    try:
        while (chunk := await listener.next()) is not None:
            yield chunk
    finally:
        execs.stop_listening(exec_pk, listener)


async def _cancel(exec_pk: int, by: str) -> bool:
    await execs.cancel(exec_pk, by)
    return await execs.wait_ended(exec_pk, CANCEL_WAIT_S)
