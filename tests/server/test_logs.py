"""What a log line may hold."""

from __future__ import annotations

import base64
import json
import logging
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primer_site import logs

SECRET = "s3cret/value+with=signs"


@pytest.fixture(autouse=True)
def known():
    logs.remember_secret(SECRET)
    yield
    logs.forget_secrets()


def written(message: str, **extra) -> str:
    record = logging.LogRecord("test", logging.INFO, __file__, 1, message, (), None)
    record.__dict__.update(extra)
    return logs.formatter().format(record)


def test_a_known_secret_is_masked():
    assert "key [secret] used" in written(f"key {SECRET} used")


def test_its_url_encoded_form_is_masked():
    assert urllib.parse.quote(SECRET, safe="") not in written(f"GET /?key={urllib.parse.quote(SECRET, safe='')}")


@given(before=st.binary(max_size=9), after=st.binary(max_size=9))
def test_its_base64_form_is_masked_wherever_it_stands(before, after):
    encoded = base64.b64encode(before + SECRET.encode() + after).decode()
    middle = base64.b64encode(SECRET.encode()).decode()[4:-6]
    assert logs.MASK in logs.redact(encoded)
    assert middle not in logs.redact(encoded)


def test_a_short_value_is_not_taken_for_a_secret():
    logs.remember_secret("on")
    assert "online" in written("online")


def test_a_secret_inside_a_longer_one_does_not_leave_the_rest():
    logs.remember_secret(SECRET + "-and-more")
    assert "and-more" not in written(SECRET + "-and-more")


@pytest.mark.parametrize("hostile", ["\x1b]0;title\x07", "\x9b31m", "a\rb", "\u202eabc", "\x00", "a\x7fb", "\ud800"])
def test_what_a_terminal_would_obey_is_shown_instead(hostile):
    line = written(f"name {hostile}")
    assert all(char.isprintable() for char in line)


def test_a_line_break_in_a_value_forges_no_second_line():
    assert "\n" not in written("first\nlevel=error event=forged")


@given(st.text())
def test_escaping_twice_is_escaping_once(text):
    once = logs.escape(text)
    assert logs.escape(once) == once


def test_a_traceback_is_kept_and_masked():
    try:
        raise ValueError(SECRET)
    except ValueError as exc:
        record = logging.LogRecord(
            "test", logging.ERROR, __file__, 1, "failed", (), (type(exc), exc, exc.__traceback__)
        )
    line = logs.formatter().format(record)
    assert "ValueError" in line
    assert SECRET not in line


# JSON


def as_json(message: str, *args, exc_info=None, **extra) -> dict:
    record = logging.LogRecord("test", logging.INFO, __file__, 1, message, args, exc_info)
    record.__dict__.update(extra)
    line = logs.formatter("json").format(record)
    assert "\n" not in line
    assert line.isascii()
    found: dict = json.loads(line)
    return found


def test_a_json_line_has_time_level_and_event():
    assert as_json("it happened") | {"timestamp": ""} == {"timestamp": "", "level": "info", "event": "it happened"}


@given(st.text(min_size=logs.SHORTEST))
def test_a_secret_with_quotes_or_line_breaks_is_masked_in_both_styles(secret):
    logs.remember_secret(secret)
    try:
        for style in ("text", "json"):
            record = logging.LogRecord("test", logging.INFO, __file__, 1, f"<{secret}>", (), None)
            line = logs.formatter(style).format(record)
            shown = json.loads(line)["event"] if style == "json" else line
            assert f"<{logs.MASK}>" in shown
    finally:
        logs.forget_secrets()
        logs.remember_secret(SECRET)


def test_values_inside_of_objects_lists_and_exceptions_are_masked(capsys):
    class Odd:
        def __repr__(self):
            return f"Odd({SECRET})"

    event = {"event": "x", "body": {SECRET: [SECRET, 1, None]}, "set": {SECRET}, "odd": Odd(), "cause": OSError(SECRET)}
    hidden = logs.hide(None, "info", event)
    assert SECRET not in repr(hidden)
    assert hidden["body"] == {logs.MASK: [logs.MASK, 1, None]}


def test_a_traceback_in_json_is_one_line_and_masked():
    try:
        raise ValueError(SECRET)
    except ValueError as exc:
        line = as_json("failed", exc_info=(type(exc), exc, exc.__traceback__))
    assert "ValueError: [secret]" in line["exception"]


# The sentinel: one secret of each kind, brought to the server in every way, and none of them in its log.

SENTINELS = {
    name: f"sentinel{name}0123456789" for name in ("env", "exec", "password", "wrong", "query", "token", "key", "init")
}


@pytest.mark.e2e
def test_no_secret_that_reaches_the_server_reaches_its_log(own_server, root_path):
    """With the level DEBUG, on good and bad paths, through a sandbox and through failures."""
    s = SENTINELS
    own_server.start(
        PRIMER_LOG_LEVEL="DEBUG", PRIMER_LOG_FORMAT="json", PRIMER_ALLOW_LOCAL="1", PRIMER_METRICS_TOKEN=s["token"] * 2
    )
    call = own_server.request

    def post(path: str, body: object, status: int, **kwargs) -> dict:
        answer = call("POST", f"/v1/{path}", json=body, **kwargs)
        assert answer.status_code == status, answer.text
        found: dict = answer.json()
        return found

    post(
        "workspace_providers",
        {"id": "here", "provider": "local", "config": {"kind": "local", "root_path": root_path}},
        201,
    )
    template = {
        "id": "plain",
        "provider_id": "here",
        "backend": {"kind": "local"},
        "env": {"PASS": {"secret": s["env"]}},
    }
    post("workspace_templates", template, 201)
    workspace = post("workspaces", {"template_id": "plain"}, 201)["id"]
    run = {"command": f"echo $PASS {s['exec']}; exit 1", "env": {"MORE": s["exec"]}, "stdin": s["exec"]}
    assert s["env"] in post(f"workspaces/{workspace}/exec", run, 200)["stdout"]
    # Refused bodies, a failing template, a wrong key of an engine, wrong sign-ins, a token in the wrong place.
    post("workspace_templates", {**template, "id": "other", "nonsense": s["key"]}, 422)
    failing = {**template, "id": "failing", "init_commands": ["echo $PASS >&2; false"]}
    post("workspace_templates", failing, 201)
    post("workspaces", {"template_id": "failing", "env": {"MINE": {"secret": s["env"]}}}, 201)
    tls = {"ca": "x", "cert": "x", "key": s["key"]}
    tcp = {"kind": "container", "connection": {"kind": "tcp", "url": "tcp://127.0.0.1:1", "tls": tls}}
    call("POST", "/v1/workspace_providers/check", json={"id": "far", "provider": "container", "config": tcp})
    post("users", {"username": "carol", "role": "member", "password": s["password"]}, 201)
    post("auth/login", {"username": "carol", "password": s["password"]}, 200, token="")
    post("auth/login", {"username": "carol", "password": s["wrong"]}, 401, token="")
    assert call("GET", f"/v1/me?token={s['query']}", token="").status_code == 401
    assert call("GET", "/v1/me", token=s["query"]).status_code == 401
    assert call("GET", "/metrics", token=s["token"] * 2).status_code == 200
    assert own_server.stop() == 0
    log = own_server.log()
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"timestamp", "level", "event"} <= set.intersection(*map(set, lines))
    assert [line for line in lines if line["event"] == "request" and line["path"] == "/v1/auth/login"]
    assert {name for name, secret in s.items() if secret in log} == set()
    assert own_server.token not in log
    assert own_server.password not in log
