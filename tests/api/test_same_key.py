"""Every POST route, with the same Idempotency-Key twice at once, again afterwards, and again after a restart of the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.api.live import PASSWORD, LiveWorld
from tests.api.table import ROUTES, operations, path_of
from tests.api.together import at_once

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
POSTS = [name for name in operations() if name.startswith("POST ")]
# A secret stands in the first answer, so none is kept: the repeat is refused.
SHOWN_ONCE = {
    "POST /v1/auth/login",
    "POST /v1/auth/logout",
    "POST /v1/auth/password",
    "POST /v1/tokens",
    "POST /v1/users",
}
WAIT_FOR_AN_ENGINE = ("/check", "/verify", "/test", "/cancel", "/dir", "/move")
LOGOUT = "POST /v1/auth/logout"  # its repeat comes with a token that is gone


@dataclass
class Deed:
    """One request, the answers it got, and what to count: one more after it, however often it was sent."""

    name: str
    path: str
    body: Any
    token: str
    counts: str = ""  # a list whose total grows by one
    before: int = 0
    answers: list[Any] = field(default_factory=list)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveWorld]:
    made = LiveWorld(tmp_path_factory.mktemp("same-key"))
    try:
        made.start()
        made.build()
        yield made
    finally:
        made.destroy()


@pytest.fixture(scope="module")
def deeds(world: LiveWorld) -> dict[str, Deed]:
    """Each POST, sent twice at once under one key."""
    found = {}
    for name in POSTS:
        deed = found[name] = plan(world, name)
        deed.before = world.total(deed.counts) if deed.counts else 0
        deed.answers += at_once(*[lambda deed=deed: send(world, deed)] * 2)
    return found


def plan(world: LiveWorld, name: str) -> Deed:
    body: Any = ROUTES[name].body
    token = world.server.token if ROUTES[name].rule.startswith("admin") else world.alice
    path = path_of(name, world.ids)
    match name.rsplit("/", 1)[1]:
        case "login":
            return Deed(name, path, body, "", "tokens?all=true")
        case "logout":
            return Deed(name, path, body, world.login("dave"))
        case "password":
            return Deed(name, path, {"old": PASSWORD, "new": "a staple that nobody expects"}, world.login("dave"))
        case "exec":
            body = {"command": "echo x >> counted; wc -l < counted"}
        case "move":
            world.call("PUT", f"workspaces/{world.ids['workspaces']}/files?path=a", {"content": "x"})
        case "stop" | "start":
            path = f"workspaces/{at_rest(world)}/{path.rsplit('/', 1)[1]}"
        case "cancel":
            world.until(f"sessions/{world.ids['sessions']}", "status", "ended")
    kind = name.removeprefix("POST /v1/")
    counts = kind if "/" not in kind else "sessions" if kind.endswith("/rerun") else ""
    counts = "tokens?all=true" if counts == "tokens" else counts
    return Deed(name, path, body, token, counts)


def at_rest(world: LiveWorld) -> str:
    workspace = world.made("workspaces", {"template_id": "plain"})["id"]
    world.until(f"workspaces/{workspace}", "phase", "running")
    assert world.call("POST", f"workspaces/{workspace}/stop").status_code == 202
    world.until(f"workspaces/{workspace}", "phase", "stopped")
    return str(workspace)


def send(world: LiveWorld, deed: Deed) -> Any:
    return world.call("POST", deed.path, deed.body, token=deed.token, key=f"key of {deed.name}".replace(" ", "-"))


def good(deed: Deed) -> list[Any]:
    return [answer for answer in deed.answers if answer.status_code < 300]


@pytest.mark.parametrize("name", POSTS)
def test_twice_at_once_is_done_once(name: str, deeds: dict[str, Deed], world: LiveWorld) -> None:
    deed = deeds[name]
    assert len(deed.answers) == 2
    assert good(deed), [answer.text for answer in deed.answers]
    for answer in deed.answers:
        if answer.status_code < 300:
            assert said(answer) == said(good(deed)[0])
        elif name == LOGOUT:
            assert answer.status_code in (401, 409), answer.text
        else:
            assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), answer.text
    if name in SHOWN_ONCE:
        assert len(good(deed)) == 1
    elif not name.endswith(WAIT_FOR_AN_ENGINE):  # else the second one waits for the answer of the first
        assert len(good(deed)) == 2, [answer.text for answer in deed.answers]
    if deed.counts:
        # Sessions also come from rerun, and workspaces from throw-away sessions and those that are made at rest.
        assert created(world, deed) == 1


def said(answer: Any) -> Any:
    return answer.json() if answer.content else None


def created(world: LiveWorld, deed: Deed) -> int:
    """How many audit lines say that this very thing was made under the requests of this deed."""
    ids = {answer.headers["X-Request-ID"] for answer in deed.answers}
    kind = {"sessions": "session", "workspaces": "workspace"}.get(deed.counts.split("?")[0])
    lines = [
        line
        for number in ids
        for line in world.call("GET", f"audit?request_id={number}", token=world.server.token).json()["items"]
        if line["action"].endswith(".create") and (kind is None or line["object_kind"] == kind)
    ]
    return len(lines)


def again(world: LiveWorld, deed: Deed) -> None:
    answer = send(world, deed)
    deed.answers.append(answer)
    if deed.name == LOGOUT:
        assert answer.status_code == 401
    elif deed.name in SHOWN_ONCE:
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert "secret" in answer.json()["detail"]
    else:
        first = good(deed)[0]
        assert (answer.status_code, said(answer)) == (first.status_code, said(first))
        assert answer.headers.get("ETag") == first.headers.get("ETag")
    if deed.counts:
        assert created(world, deed) == 1


@pytest.mark.parametrize("name", POSTS)
def test_a_repeat_gets_the_first_answer(name: str, deeds: dict[str, Deed], world: LiveWorld) -> None:
    again(world, deeds[name])


@pytest.mark.parametrize("name", POSTS)
def test_another_body_under_the_same_key_is_refused(name: str, deeds: dict[str, Deed], world: LiveWorld) -> None:
    if name in (LOGOUT, "POST /v1/auth/login"):
        return  # whoever comes again comes as nobody, or with a password that is wrong
    deed = deeds[name]
    other = other_of(name, deed.body)
    answer = world.call("POST", deed.path, other, token=deed.token, key=f"key of {name}".replace(" ", "-"))
    assert answer.status_code in (409, 422), answer.text
    if answer.status_code == 409:
        assert answer.json()["code"] == "conflict"


def other_of(name: str, body: Any) -> dict[str, Any]:
    """A body that the route would take too."""
    match name.rsplit("/", 1)[1]:
        case "agents" | "llm_providers" | "workspace_providers" | "workspace_templates" | "check":
            return {**body, "description": "another"} if body else {"a": 1}
        case "exec":
            return {"command": "true"}
        case "dir":
            return {"path": "e"}
        case "move":
            return {"source": "a", "target": "c"}
        case "messages":
            return {"text": "other"}
        case "sessions":
            return {**body, "initial_instructions": "other"}
        case "workspaces":
            return {**body, "name": "other"}
        case "tokens":
            return {**body, "name": "other"}
        case "users":
            return {**body, "username": "other"}
        case "password":
            return {"old": "a staple that nobody expects", "new": "yet another staple 9"}
    return {"force": True}


@pytest.fixture(scope="module")
def restarted(world: LiveWorld, deeds: dict[str, Deed]) -> LiveWorld:
    world.server.kill9()
    world.restart()
    return world


@pytest.mark.parametrize("name", POSTS)
def test_after_a_restart_a_repeat_gets_the_first_answer(
    name: str, deeds: dict[str, Deed], restarted: LiveWorld
) -> None:
    again(restarted, deeds[name])


def test_the_program_ran_once(deeds: dict[str, Deed], restarted: LiveWorld) -> None:
    answers = [answer.json() for answer in good(deeds["POST /v1/workspaces/{id}/exec"])]
    assert {answer["stdout"].strip() for answer in answers} == {"1"}
    assert len({answer["id"] for answer in answers}) == 1


def test_the_message_was_said_once(deeds: dict[str, Deed], restarted: LiveWorld) -> None:
    events = restarted.call("GET", f"sessions/{restarted.ids['sessions']}/events").json()["items"]
    body = ROUTES["POST /v1/sessions/{id}/messages"].body or {}
    assert [event["data"]["text"] for event in events if event["kind"] == "user_message"].count(body["text"]) == 1
