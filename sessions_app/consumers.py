"""The socket of a live transcript. Read-only: it replays what the store has after `after`, then stays live."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs

from channels.generic.websocket import AsyncWebsocketConsumer

from primer_site import loop
from primer_site.parsing import whole
from sessions_app.live import JSON, PROTOCOLS, Listener
from sessions_app.permits import Permit, Refused, bearer_of, open_permit, origin_allowed

BAD_REQUEST = 4400


class EventsConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """`ws/v1/sessions/<id>/events/?after=<seq>`; every message is one event, `{seq, ts, kind, data}`.

    The sub-protocol `primer.v1.html` adds `html`: the event as the console draws it.
    """

    _listener: Listener | None = None
    _task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        headers = self.scope["headers"]
        # A browser sends the cookie along with any page's socket, and only its Origin tells which page. A refusal before
        # the accept is a bare HTTP 403, which is all that a foreign page gets.
        if bearer_of(headers) is None and not origin_allowed(headers) and _has_cookie(headers):
            await self.close()
            return
        offered = self.scope.get("subprotocols", [])
        spoken = next((name for name in offered if name in PROTOCOLS), None)
        await self.accept(spoken)
        if offered and spoken is None:
            await self.close(BAD_REQUEST, f"the sub-protocol is {' or '.join(PROTOCOLS)}")
            return
        after = _after(self.scope)
        if after is None:
            await self.close(BAD_REQUEST, "after must be a whole number")
            return
        address = (self.scope.get("client") or [""])[0]
        try:
            session_id = self.scope["url_route"]["kwargs"]["id"]
            # It leaves a line in the audit log and stamps the token: a write, if a small one.
            permit = await loop.write(open_permit, session_id, headers, address)
        except Refused as exc:
            await self.close(exc.code)
            return
        self._follow(permit, after, spoken or JSON)

    def _follow(self, permit: Permit, after: int, protocol: str) -> None:
        # An `after` from the future would wait for it in vain.
        self._listener = Listener(permit, min(after, permit.last_seq), self._send_text, self.close, protocol)
        self._task = asyncio.create_task(self._listener.run(), name="socket")

    async def _send_text(self, text: str) -> None:
        await self.send(text_data=text)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Read-only: what a client says is not listened to."""

    async def disconnect(self, code: int) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})


def _has_cookie(headers: Any) -> bool:
    return any(name.lower() == b"cookie" for name, _ in headers)


def _after(scope: dict[str, Any]) -> int | None:
    """The `after` of the query, 0 without one, None when it is no whole number."""
    values = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True).get("after", ["0"])
    return whole(values[-1])
