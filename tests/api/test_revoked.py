"""What opened a socket is taken away: the socket of a real server closes within seconds, and says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import websocket

from tests.api.live import PASSWORD, LiveWorld

pytestmark = pytest.mark.e2e
UNAUTHENTICATED, GONE = 4401, 4404
WITHIN_S = 10  # permission is asked once a second


def follow(world: LiveWorld, token: str, session: str) -> websocket.WebSocket:
    """An open socket that has received its first event."""
    url = f"{world.server.url.replace('http', 'ws', 1)}/ws/v1/sessions/{session}/events/?after=0"
    sock = websocket.create_connection(
        url, header=[f"Authorization: Bearer {token}"], subprotocols=["primer.v1.json"], timeout=WITHIN_S
    )
    assert sock.recv()
    return sock


def closed_with(sock: websocket.WebSocket) -> int:
    """The code that the server closes the socket with; fails when it stays open."""
    try:
        while True:
            opcode, data = sock.recv_data()
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                return int.from_bytes(data[:2], "big")
    finally:
        sock.shutdown()  # `close` leaves one open that the server closed


def by_its_owner(world: LiveWorld, name: str, token: str) -> None:
    (row,) = [
        item for item in world.call("GET", "tokens", token=token).json()["items"] if item["name"].startswith("login")
    ]
    assert world.call("DELETE", f"tokens/{row['id']}", token=token).status_code == 204


def by_signing_out(world: LiveWorld, name: str, token: str) -> None:
    assert world.call("POST", "auth/logout", token=token).status_code == 204


def by_a_reset_password(world: LiveWorld, name: str, token: str) -> None:
    assert world.call("PATCH", f"users/{name}", {"reset_password": True}, token=world.server.token).status_code == 200


def by_deactivating_the_user(world: LiveWorld, name: str, token: str) -> None:
    assert world.call("DELETE", f"users/{name}", token=world.server.token).status_code == 204


WAYS: tuple[Callable[[LiveWorld, str, str], None], ...] = (
    by_its_owner, by_signing_out, by_a_reset_password, by_deactivating_the_user,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_socket_closes_when_its_token_ends(way: Callable[..., None], live_world: LiveWorld) -> None:
    world, name = live_world, f"user-{way.__name__.replace('_', '-')}"
    world.made("users", {"username": name, "password": PASSWORD}, token=world.server.token)
    token = world.login(name)
    agent = {"id": name, "model": {"provider_id": "scripted", "model_name": "scripted"}}
    world.made("agents", agent, token=token)
    body = {"agent_id": name, "template_id": "plain", "initial_instructions": "print(1)"}
    sock = follow(world, token, world.made("sessions", body, token=token)["id"])
    way(world, name, token)
    assert closed_with(sock) == UNAUTHENTICATED
    assert world.call("GET", "me", token=token).status_code == 401


def test_a_deleted_session_closes_its_sockets(live_world: LiveWorld) -> None:
    body = {"agent_id": "code-runner", "template_id": "plain", "initial_instructions": "print(1)"}
    session = live_world.made("sessions", body)["id"]
    sock = follow(live_world, live_world.alice, session)
    live_world.until(f"sessions/{session}", "status", "ended")
    assert live_world.call("DELETE", f"sessions/{session}").status_code == 204
    assert closed_with(sock) == GONE


def test_a_stranger_and_a_token_that_never_was_are_closed_after_the_accept(live_world: LiveWorld) -> None:
    session = live_world.ids["sessions"]
    url = f"{live_world.server.url.replace('http', 'ws', 1)}/ws/v1/sessions/{session}/events/?after=0"
    tokens = {live_world.login("dave"): GONE, "f" * 64: UNAUTHENTICATED}
    for token, code in tokens.items():
        sock = websocket.create_connection(url, header=[f"Authorization: Bearer {token}"], timeout=WITHIN_S)
        assert closed_with(sock) == code
    for query in (f"?token={live_world.alice}", f"?access_token={live_world.alice}"):
        sock = websocket.create_connection(url.partition("?")[0] + query, timeout=WITHIN_S)
        assert closed_with(sock) == UNAUTHENTICATED
