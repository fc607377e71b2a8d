"""The ASGI application: Django for HTTP, channels for WebSockets."""

from __future__ import annotations

import os
from typing import Any, cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "primer_site.settings")

import django
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase

django.setup(set_prefix=False)  # whatever follows may import models


class OneThreadHandler(ASGIHandler):
    """Runs middleware and view of a request in one thread, with one hop there and back.

    Django's own way adapts each sync middleware by itself: two hops for every one of them, milliseconds of each request.
    Bodies of streaming responses are still iterated on the server's loop.
    """

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = await sync_to_async(self.get_response, thread_sensitive=True)(request)
        return response


http = OneThreadHandler()

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
