"""The socket's doors: who gets in, with which code the others are sent away."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.test import Client

from accounts import services as accounts
from accounts.models import AuditEntry, User
from primer_site import loop
from primer_site.asgi import application
from sessions_app.events import EventDraft, append
from sessions_app.live import close_all
from sessions_app.models import AgentSession, EventKind
from sessions_app.services import locked
from tests.factories import make_admin, make_user
from tests.sessions.cast import make_session

JSON = "primer.v1.json"
Headers = list[tuple[bytes, bytes]]


def bearer(user: User, scope: str = "read") -> Headers:
    _, value = accounts.token_create(user=user, name="socket", scope=scope, expires_in_s=600)
    return [(b"authorization", f"Bearer {value}".encode())]


def cookie(user: User, origin: str | None = "http://testserver") -> Headers:
    client = Client()
    client.force_login(user)
    key = client.cookies[settings.SESSION_COOKIE_NAME].value
    headers = [(b"host", b"testserver"), (b"cookie", f"{settings.SESSION_COOKIE_NAME}={key}".encode())]
    return [*headers, (b"origin", origin.encode())] if origin else headers


class Dialogue:
    """One client; `open` returns whether it was accepted, `code` what it was closed with."""

    def __init__(
        self, session: str, headers: Headers, query: str = "after=0", protocols: Sequence[str] = (JSON,)
    ) -> None:
        path = f"/ws/v1/sessions/{session}/events/?{query}"
        self._socket = WebsocketCommunicator(application, path, headers=headers, subprotocols=list(protocols))
        self.protocol: str | int | None = None

    async def open(self) -> bool:
        accepted, self.protocol = await self._socket.connect(timeout=20)
        return bool(accepted)

    async def next(self) -> Any:
        return await self._socket.receive_json_from(timeout=20)

    async def code(self) -> int:
        while True:
            message = await self._socket.receive_output(timeout=20)
            if message["type"] == "websocket.close":
                return int(message["code"])

    async def leave(self) -> None:
        await self._socket.disconnect()

    async def say(self, text: str) -> None:
        await self._socket.send_to(text_data=text)


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return loop.run(scenario, 60)


@pytest.fixture(autouse=True)
def known_host(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["testserver"]


@pytest.fixture
def session(quiet_database: None) -> AgentSession:
    return locked(make_session())


async def refusal(session: str, headers: Headers, **more: Any) -> int:
    """The code a client is closed with after it was accepted."""
    dialogue = Dialogue(session, headers, **more)
    assert await dialogue.open(), "refused before the accept"
    return await dialogue.code()


def test_the_owner_gets_the_events_in_envelopes(session: AgentSession) -> None:
    async def scenario(headers: Headers) -> None:
        dialogue = Dialogue(session.slug, headers)
        assert await dialogue.open()
        assert dialogue.protocol == JSON
        first, second = await dialogue.next(), await dialogue.next()
        assert set(first) == {"seq", "ts", "kind", "data"}
        assert (first["seq"], first["kind"]) == (1, "session_status")
        assert (second["seq"], second["kind"]) == (2, "user_message")
        assert first["ts"].endswith("Z")
        await dialogue.say('{"type": "anything"}')  # read-only: not listened to
        await loop.write(append, session, EventDraft(EventKind.WARNING, {"message": "live"}))
        assert (await dialogue.next())["data"] == {"message": "live"}
        await dialogue.leave()

    run(scenario(bearer(make_user())))


def test_resuming_after_the_last_seq_has_no_gap_and_no_repeat(session: AgentSession) -> None:
    async def scenario(headers: Headers) -> None:
        seen: list[int] = []
        for _ in range(4):
            dialogue = Dialogue(session.slug, headers, query=f"after={seen[-1] if seen else 0}")
            assert await dialogue.open()
            await loop.write(append, session, *[EventDraft(EventKind.WARNING, {"message": "x"})] * 3)
            for _ in range(2):
                seen.append((await dialogue.next())["seq"])
            await dialogue.leave()
        assert seen == list(range(1, 9))

    run(scenario(bearer(make_user())))


def test_an_after_from_the_future_waits_for_the_next_event_only(session: AgentSession) -> None:
    async def scenario(headers: Headers) -> None:
        dialogue = Dialogue(session.slug, headers, query="after=999999")
        assert await dialogue.open()
        await loop.write(append, session, EventDraft(EventKind.WARNING, {"message": "next"}))
        assert (await dialogue.next())["seq"] == 3
        await dialogue.leave()

    run(scenario(bearer(make_user())))


@pytest.mark.parametrize("headers", [[], [(b"authorization", b"Bearer wrong")], [(b"authorization", b"Basic eDp5")]])
def test_nobody_is_sent_away_with_4401_after_the_accept(session: AgentSession, headers: Headers) -> None:
    assert run(refusal(session.slug, headers)) == 4401


def test_a_token_in_the_url_is_no_token(session: AgentSession) -> None:
    value = bearer(make_user())[0][1].decode().split()[1]
    assert run(refusal(session.slug, [], query=f"after=0&token={value}")) == 4401


def test_charlie_and_a_missing_session_are_the_same_4404(session: AgentSession) -> None:
    headers = bearer(make_user("charlie"))
    assert run(refusal(session.slug, headers)) == 4404
    assert run(refusal("sess-0123456789abcdef", headers)) == 4404


def test_an_admin_may_follow_and_leaves_a_line_in_the_audit_log(session: AgentSession) -> None:
    async def scenario(headers: Headers) -> None:
        dialogue = Dialogue(session.slug, headers)
        assert await dialogue.open()
        assert (await dialogue.next())["seq"] == 1
        await dialogue.leave()

    run(scenario(bearer(make_admin(), "admin")))
    (entry,) = AuditEntry.objects.filter(action="session.open")
    assert (entry.actor_name, entry.object_id) == ("bob", session.slug)


def test_the_consoles_cookie_opens_a_socket_of_its_own_page(session: AgentSession) -> None:
    async def scenario(headers: Headers) -> None:
        dialogue = Dialogue(session.slug, headers)
        assert await dialogue.open()
        assert (await dialogue.next())["seq"] == 1
        await dialogue.leave()

    run(scenario(cookie(make_user())))


@pytest.mark.parametrize("origin", ["http://evil.example", "http://testserver.evil.example", "null", None])
def test_a_foreign_page_is_refused_before_the_accept(session: AgentSession, origin: str | None) -> None:
    async def scenario(headers: Headers) -> bool:
        return await Dialogue(session.slug, headers).open()

    assert run(scenario(cookie(make_user(), origin))) is False


def test_the_origin_of_a_bearer_socket_does_not_matter(session: AgentSession) -> None:
    headers = [*bearer(make_user()), (b"origin", b"http://elsewhere.example"), (b"host", b"testserver")]

    async def scenario() -> bool:
        dialogue = Dialogue(session.slug, headers)
        accepted = await dialogue.open()
        await dialogue.leave()
        return accepted

    assert run(scenario())


@pytest.mark.parametrize("query", ["after=x", "after=-1", "after=1e3", "after=" + "9" * 30, "after="])
def test_an_after_that_is_no_number_is_refused(session: AgentSession, query: str) -> None:
    assert run(refusal(session.slug, bearer(make_user()), query=query)) == 4400


def test_a_sub_protocol_of_another_form_is_refused_and_none_at_all_is_json(session: AgentSession) -> None:
    headers = bearer(make_user())
    assert run(refusal(session.slug, headers, protocols=["primer.v2.json"])) == 4400

    async def scenario() -> Any:
        dialogue = Dialogue(session.slug, headers, protocols=())
        assert await dialogue.open()
        event = await dialogue.next()
        await dialogue.leave()
        return event["seq"], dialogue.protocol

    assert run(scenario()) == (1, None)


def test_the_form_for_pages_adds_each_event_as_the_console_draws_it(session: AgentSession) -> None:
    headers = bearer(make_user())

    async def scenario() -> Any:
        dialogue = Dialogue(session.slug, headers, protocols=("primer.v1.html",))
        assert await dialogue.open()
        first, second = await dialogue.next(), await dialogue.next()
        await dialogue.leave()
        return dialogue.protocol, first, second

    protocol, first, second = run(scenario())
    assert protocol == "primer.v1.html"
    assert (first["seq"], second["kind"]) == (1, "user_message")
    assert 'id="e2"' in second["html"]
    assert second["data"]["text"]


def test_a_revoked_token_closes_its_socket_within_a_second_or_so(session: AgentSession) -> None:
    headers = bearer(make_user())

    async def scenario() -> int:
        dialogue = Dialogue(session.slug, headers)
        assert await dialogue.open()
        await dialogue.next()
        await loop.write(revoke_all)
        return await dialogue.code()

    def revoke_all() -> None:
        for token in make_user().auth_token_set.all():
            accounts.token_revoke(token=token)

    assert run(scenario()) == 4401


@pytest.mark.parametrize("end", ["logout", "password", "deactivated"])
def test_a_cookie_socket_ends_with_its_sign_in(session: AgentSession, end: str) -> None:
    user = make_user()
    headers = cookie(user)

    async def scenario() -> int:
        dialogue = Dialogue(session.slug, headers)
        assert await dialogue.open()
        await dialogue.next()
        await loop.write(sign_out)
        return await dialogue.code()

    def sign_out() -> None:
        from django.contrib.sessions.models import Session

        if end == "logout":
            assert all(SESSION_KEY in row.get_decoded() for row in Session.objects.all())
            Session.objects.all().delete()
        elif end == "password":
            accounts.user_reset_password(user=user)
        else:
            User.objects.filter(pk=user.pk).update(is_active=False)

    assert run(scenario()) == 4401


def test_a_restart_closes_with_4012(session: AgentSession) -> None:
    headers = bearer(make_user())

    async def scenario() -> int:
        dialogue = Dialogue(session.slug, headers)
        assert await dialogue.open()
        await dialogue.next()
        await close_all(4012)
        return await dialogue.code()

    assert run(scenario()) == 4012


def test_hostile_ids_are_just_not_there(session: AgentSession) -> None:
    headers = bearer(make_user())
    for hostile in ("%00", "..", "sess-%27%20or%201", "x" * 500, "%F0%9F%92%A9"):
        assert run(refusal(hostile, headers)) == 4404
