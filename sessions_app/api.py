"""Routes of sessions: create, read, continue, end, and their events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema, extend_schema_view
from rest_framework.decorators import action
from rest_framework.negotiation import BaseContentNegotiation, DefaultContentNegotiation
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.audit import Actor
from accounts.permissions import require_change
from accounts.rest import ResourceViewSet, is_dry, refuse_fields
from primer_site import loop
from primer_site.errors import FieldError, Invalid
from primer_site.pagination import whole_number
from sessions_app import services
from sessions_app.events import envelope, events_after
from sessions_app.export import RENDERERS, render
from sessions_app.models import AgentSession, Status
from sessions_app.serializers import (
    EventPageSerializer,
    MessageSerializer,
    NewSessionSerializer,
    SessionSerializer,
)

MAX_EVENTS = 500
MAX_SEQ = 10**18
CANCEL_S = 5.0  # how long a cancel waits for the end of the run
WAIT_STEP_S = 0.05
# What a list reads: of the objects behind a session their names alone, since each row brings them along.
SHOWN = (
    *[field.name for field in AgentSession._meta.concrete_fields],
    "owner__username", "agent__slug", "workspace__slug", "workspace__deleted_at",
)  # fmt: skip


class OneForm(BaseContentNegotiation):
    """Answers in JSON whatever is asked for: `?format=` names the form of a transcript, not a renderer."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return DefaultContentNegotiation().select_parser(request, parsers)

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


@extend_schema_view(
    create=extend_schema(request=NewSessionSerializer, responses={201: SessionSerializer}),
)
class SessionViewSet(ResourceViewSet):
    """Agents at work. Private to their owner and to admins."""

    kind = "session"
    model = AgentSession
    counted = ("create", "messages", "rerun")
    serializer_class = SessionSerializer
    content_negotiation_class = OneForm
    search_fields = ("slug", "initial_instructions", "answer")
    takes = {"events": ("after", "limit"), "transcript": ("format",)}
    filters = {
        "status": "status",
        "ended_reason": "ended_reason",
        "agent_id": "agent__slug",
        "workspace_id": "workspace__slug",
    }

    def get_serializer_class(self) -> Any:
        return NewSessionSerializer if self.action == "create" else SessionSerializer

    def shown(self, obj: AgentSession) -> dict[str, Any]:
        return dict(SessionSerializer(obj).data)

    def made_up(self, obj: AgentSession) -> tuple[str, ...]:
        return ("id", "workspace_id") if obj.throwaway else ("id",)

    def base_queryset(self) -> QuerySet[Any]:
        rows = AgentSession.objects.select_related("owner", "agent", "workspace")
        return rows.only(*SHOWN) if self.action == "list" else rows

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        services.audit_opening(self.actor, self.get_object())
        return super().retrieve(request, *args, **kwargs)

    def service_create(self, by: Actor, data: dict[str, Any]) -> AgentSession:
        return services.session_create(by=by, **data)

    def service_update(self, by: Actor, obj: AgentSession, data: dict[str, Any]) -> AgentSession:
        return services.session_update(by=by, session=obj, labels=data.get("labels", obj.labels))

    def service_delete(self, by: Actor, obj: AgentSession) -> bool:
        services.session_delete(by=by, session=obj)
        return False

    def _act(self, request: Request, work: Callable[[AgentSession], Response]) -> Response:
        """A POST on one session that only writes the database, under its Idempotency-Key, or dry."""
        session = self._changeable(request)
        return self.once(request, lambda: work(session))

    def _changeable(self, request: Request) -> AgentSession:
        session: AgentSession = self.get_object()
        require_change(self.actor.user, session, request.auth)
        return session

    @extend_schema(request=MessageSerializer, responses={200: SessionSerializer})
    @action(detail=True, methods=["post"])
    def messages(self, request: Request, id: str) -> Response:
        """Continues an ended session."""

        def work(session: AgentSession) -> Response:
            body = MessageSerializer(data=request.data)  # looked at only for a session that is the caller's to see
            body.is_valid(raise_exception=True)
            text = body.validated_data["text"]
            return self.answer(services.session_message(by=self.actor, session=session, text=text))

        return self._act(request, work)

    @extend_schema(request=None, responses={200: SessionSerializer, 202: SessionSerializer})
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, id: str) -> Response:
        """Ends a session and the command it runs. 200 once both are over, 202 while that goes on after 5 s.

        A dry run answers with the session as it is.
        """
        refuse_fields(request)
        session = self._changeable(request)

        def work() -> Response:
            if is_dry(request):  # a program that is killed does not come back with a rolled back transaction
                return self.answer(session)
            ending = services.session_cancel(by=self.actor, session=session)
            if ending.status != Status.ENDED:
                loop.run(_ended(ending.pk, CANCEL_S), CANCEL_S + 5)
                ending.refresh_from_db()
            return self.answer(ending, 200 if ending.status == Status.ENDED else 202)

        return self.once(request, work, outside=True)

    @extend_schema(request=None, responses={201: SessionSerializer})
    @action(detail=True, methods=["post"])
    def rerun(self, request: Request, id: str) -> Response:
        """Starts a new session with the same input."""
        refuse_fields(request)
        return self._act(
            request, lambda session: self.answer(services.session_rerun(by=self.actor, session=session), 201)
        )

    @extend_schema(
        parameters=[
            OpenApiParameter("after", int, description="The last seq that is known; 0 without it."),
            OpenApiParameter("limit", int, description=f"At most so many events, 1 to {MAX_EVENTS}."),
        ],
        responses=EventPageSerializer,
    )
    @action(detail=True, methods=["get"])
    def events(self, request: Request, id: str) -> Response:
        """Stored events behind `after`, in order. `last_seq` is the session's last one."""
        session = self.get_object()
        services.audit_opening(self.actor, session)
        after = whole_number(request, "after", 0, 0, MAX_SEQ)
        limit = whole_number(request, "limit", MAX_EVENTS, 1, MAX_EVENTS)
        items = [envelope(event) for event in events_after(session.pk, after, limit)]
        last = max(session.last_seq, items[-1]["seq"] if items else 0)
        return Response({"items": items, "last_seq": last})

    @extend_schema(
        parameters=[OpenApiParameter("format", str, enum=list(RENDERERS), description="jsonl without it.")],
        responses={(200, kind): OpenApiResponse(OpenApiTypes.STR) for kind, _, _ in RENDERERS.values()},
    )
    @action(detail=True, methods=["get"])
    def transcript(self, request: Request, id: str) -> Any:
        """The whole transcript as a file."""
        session = self.get_object()
        services.audit_opening(self.actor, session)
        name = request.query_params.get("format") or "jsonl"
        if name not in RENDERERS:
            known = ", ".join(RENDERERS)
            raise Invalid("The transcript has no such form.", errors=[FieldError("format", f"must be one of {known}")])
        kind, suffix, form = RENDERERS[name]
        response = StreamingHttpResponse(render(form(session)), content_type=kind)
        response["Content-Disposition"] = f'attachment; filename="{session.slug}.{suffix}"'
        return response


async def _ended(session_pk: int, within: float) -> None:
    """Waits until the session has ended, at most so many seconds."""
    deadline = asyncio.get_running_loop().time() + within
    while asyncio.get_running_loop().time() < deadline:
        if await loop.read(_status, session_pk) == Status.ENDED:
            return
        await asyncio.sleep(WAIT_STEP_S)


def _status(session_pk: int) -> str | None:
    found: str | None = AgentSession.objects.filter(pk=session_pk).values_list("status", flat=True).first()
    return found
