"""The ASGI application: Django for HTTP, channels for WebSockets."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import IO, Any, cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "primer_site.settings")

import django
from asgiref.sync import ThreadSensitiveContext
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.db import connections
from django.http import FileResponse
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

from primer_site import loop
from primer_site.threads import Threads

django.setup(set_prefix=False)  # whatever follows may import models

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class OneHopHandler(ASGIHandler):
    """Runs a request from its first signal to its last in one thread, with one hop there and back.

    Django's own way makes a new thread for each request, so its database connection is always a new one, and hops for
    every signal and sync middleware: most of what a small request costs. Bodies of streaming responses are still iterated
    on the server's loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self.views = Threads("view", at_end=connections.close_all)

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        async with ThreadSensitiveContext():  # a sync streaming body gets a thread of its own
            await self.handle(scope, receive, send)

    async def handle(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        try:
            body: IO[bytes] = await self.read_body(receive)
        except RequestAborted:
            return
        answer = asyncio.ensure_future(self._answer(scope, body, send))
        gone = asyncio.ensure_future(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answer.cancel()
            gone.cancel()
            results = await asyncio.gather(answer, gone, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, RequestAborted):
                raise result

    async def _answer(self, scope: dict[str, Any], body: IO[bytes], send: Send) -> None:
        """Sends the response. A client that goes away ends this; its view runs on, and what it made is let go there."""
        view = asyncio.ensure_future(self.views.run(_alone, self._respond, scope, body))
        view.add_done_callback(lambda _: body.close())  # and no sooner: the view of a client that has gone still reads
        try:
            response: HttpResponseBase = await asyncio.shield(view)
        except asyncio.CancelledError:
            view.add_done_callback(self._let_go)
            raise
        try:
            await self.send_response(response, send)
        finally:
            if response.streaming:
                await asyncio.shield(self.views.run(response.close))

    def _respond(self, scope: dict[str, Any], body: IO[bytes]) -> HttpResponseBase:
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, refusal = self.create_request(scope, body)
        response = self.get_response(request) if request is not None else cast(HttpResponseBase, refusal)
        response._handler_class = self.__class__  # type: ignore[attr-defined]
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        if not response.streaming:
            response.close()  # its content is at hand; the thread is free of it before the client has it
        return response

    def _let_go(self, view: asyncio.Future[HttpResponseBase]) -> None:
        """Closes the streaming response of a view whose client had gone before it came."""
        if not view.cancelled() and view.exception() is None and view.result().streaming:
            loop.spawn(self.views.run(view.result().close), name="close a response that nobody takes")


def _alone(function: Callable[..., HttpResponseBase], *args: Any) -> HttpResponseBase:
    """A thread serves many requests: what one leaves in context variables must not reach the next."""
    return contextvars.Context().run(function, *args)


http = OneHopHandler()

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.urls import re_path  # noqa: E402

from sessions_app.routing import websocket_urlpatterns  # noqa: E402

NOT_FOUND = 4404


async def unknown_socket(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Accepts before it closes: a refusal before that is a bare HTTP 403 from which no client learns the reason."""
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": NOT_FOUND})


application = ProtocolTypeRouter(
    {"http": http, "websocket": URLRouter([*websocket_urlpatterns, re_path(r"", cast(Any, unknown_socket))])}
)
