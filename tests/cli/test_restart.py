"""A server that restarts while somebody waits: asked again until the time is up, and said once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.client import Client
from tests.cli.conftest import Cli
from tests.cli.fake import WS, Answer, Primer, problem


class Outage:
    """Refuses every connection after `calls` of them, until `end` on the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cli: Cli, calls: int, end: float) -> None:
        import requests

        exchange: Callable[..., Any] = Client._exchange
        self.seen = 0

        def shaky(client: Client, *args: Any, **settings: Any) -> Any:
            self.seen += 1
            if self.seen > calls and cli.clock.now < end:
                raise requests.ConnectionError("Connection refused")
            return exchange(client, *args, **settings)

        monkeypatch.setattr(Client, "_exchange", shaky)


@pytest.fixture(autouse=True)
def there(primer: Primer) -> None:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "pending", "looks": 0}
    primer.boots_after = 3


CREATE = ["create", "workspace", "--set", "template_id=x", "--wait"]
WAIT = ["wait", f"workspace/{WS}", "--for=phase=running"]


@pytest.mark.parametrize("argv", [CREATE, WAIT])
def test_a_wait_survives_the_restart_and_says_so_once(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    Outage(monkeypatch, cli, calls=2, end=cli.clock.now + 30)
    result = cli(*argv)
    assert (result.code, result.text.split()[0]) == (0, f"workspace/{WS}")
    assert result.err.count("connection refused; still trying\n") == 1


@pytest.mark.parametrize("argv", [CREATE, WAIT])
def test_a_server_that_stays_away_is_6_when_the_time_is_up(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    Outage(monkeypatch, cli, calls=1, end=float("inf"))
    started = cli.clock.now
    assert cli(*argv).code == 6
    assert 120 <= cli.clock.now - started < 130


def test_an_address_that_never_answered_fails_at_once(cli: Cli) -> None:
    started = cli.clock.now
    assert cli(*WAIT, PRIMECTL_SERVER="http://127.0.0.1:1").code == 6
    assert cli.clock.now - started < 5


def test_a_delete_waits_through_a_restart(cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch) -> None:
    Outage(monkeypatch, cli, calls=1, end=cli.clock.now + 30)
    result = cli("delete", "workspace", WS)
    assert (result.code, result.text) == (0, f"workspace/{WS} deleted\n")


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_that_answers_for_it_is_waited_out(cli: Cli, primer: Primer, status: int) -> None:
    page = Answer(status, b"<html>", {"Content-Type": "text/html"})
    answers = [Answer(200, {"id": WS, "phase": "starting"}), *[page] * 8]
    running = Answer(200, {"id": WS, "phase": "running"})
    primer.on("GET", f"/v1/workspaces/{WS}", lambda request: answers.pop(0) if answers else running)
    assert cli(*WAIT).code == 0


@pytest.mark.parametrize("calls", range(1, 6))
def test_run_waits_for_a_restart_at_each_of_its_steps(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    primer.exec_result = {"id": "x1", "ended_by": "exit", "exit_code": 0, "stdout_bytes": 3, "stderr_bytes": 0}
    primer.exec_output["stdout"] = b"42\n"
    primer.exec_lines = [{"id": "x1"}, {"result": primer.exec_result}]
    outage = Outage(monkeypatch, cli, calls=calls, end=cli.clock.now + 30)
    result = cli("run", "-c", "x")
    assert (result.code, result.out) == (0, b"42\n")
    assert outage.seen > calls  # it came to that step
    assert result.err.count("connection refused; still trying\n") == 1
    assert WS not in primer.store["workspaces"]


@pytest.mark.parametrize(
    "argv", [["get", "ws", "-o", "name", "--limit", "0"], ["workspace", "files", "put", WS, "f", "-f", "-"]]
)
def test_every_verb_waits_for_a_server_that_has_answered(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    page = Answer(200, {"items": [{"id": WS}], "next_cursor": "more"})
    rest = Answer(200, {"items": [], "next_cursor": None})
    primer.on("GET", "/v1/workspaces", lambda request: rest if "cursor" in request.query else page)
    argv = [word.replace(WS, WS[:7]) for word in argv]  # a cut id is looked up first
    Outage(monkeypatch, cli, calls=1, end=cli.clock.now + 30)
    result = cli(*argv, stdin=b"42")
    assert (result.code, result.err.count("still trying")) == (0, 1)


def test_an_upload_that_a_restart_cuts_off_is_sent_again_from_its_start(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """The upload is the first call of this process: what the server took of it shows that it was there."""
    import requests

    exchange: Callable[..., Any] = Client._exchange
    began = cli.clock.now

    def shaky(client: Client, *args: Any, **settings: Any) -> Any:
        if cli.clock.now == began:
            settings["data"].read(10)
            raise requests.ConnectionError("Connection aborted.")
        if cli.clock.now < began + 30:
            raise requests.ConnectionError("Connection refused")
        return exchange(client, *args, **settings)

    monkeypatch.setattr(Client, "_exchange", shaky)
    (folder / "data.bin").write_bytes(bytes(range(100)))
    result = cli("workspace", "files", "put", WS, "data.bin", "-f", "data.bin")
    assert (result.code, result.text) == (0, f"{WS}:data.bin written (100 bytes)\n")
    assert primer.files["data.bin"] == bytes(range(100))


def test_the_limit_of_an_answer_does_not_count_the_wait_for_the_server(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restart takes longer than one call may, on the clock that calls are measured by."""
    import time

    primer.store["agents"] = {"a": {"id": "a"}}
    began, real = cli.clock.now, time.monotonic
    monkeypatch.setattr("cli.client.time.monotonic", lambda: real() + cli.clock.now - began)
    Outage(monkeypatch, cli, calls=1, end=cli.clock.now + 45)
    page = Answer(200, {"items": [{"id": "a"}], "next_cursor": "more"})
    rest = Answer(200, {"items": [], "next_cursor": None})
    primer.on("GET", "/v1/agents", lambda request: rest if "cursor" in request.query else page)
    result = cli("get", "agents", "-o", "name", "--limit", "0")
    assert (result.code, result.text) == (0, "agent/a\n")


def test_a_minute_away_is_long_enough_where_nothing_is_waited_for(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Outage(monkeypatch, cli, calls=1, end=float("inf"))
    started = cli.clock.now
    assert cli("run", "-c", "x").code == 6
    assert cli.clock.now - started > 60


def test_an_answer_that_breaks_off_is_asked_for_again_but_an_order_is_not(cli: Cli, primer: Primer) -> None:
    whole = {"id": WS, "phase": "running"}
    cut = [Answer(200, None, {"Content-Type": "application/json"}, pieces=[b'{"id"'], cut=True)]
    primer.on("GET", f"/v1/workspaces/{WS}", lambda request: cut.pop() if cut else Answer(200, whole))
    assert cli("get", "workspace", WS, "-o", "name").text == f"workspace/{WS}\n"
    primer.on(
        "POST",
        f"/v1/workspaces/{WS}/stop",
        Answer(200, None, {"Content-Type": "application/json"}, pieces=[b"{"], cut=True),
    )
    assert cli("workspace", "stop", WS).code == 6
    assert len(primer.sent("POST", f"/v1/workspaces/{WS}/stop")) == 1


def test_a_refusal_is_no_restart(cli: Cli, primer: Primer) -> None:
    answers = [Answer(200, {"id": WS, "phase": "starting"})]
    denied = problem(403, "forbidden", "No.")
    primer.on("GET", f"/v1/workspaces/{WS}", lambda request: answers.pop(0) if answers else denied)
    assert cli(*WAIT).code == 4


def test_a_watch_survives_a_proxy_and_a_refused_connection(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch
) -> None:
    primer.store["agents"] = {"a": {"id": "a"}}
    page = Answer(502, b"<html>", {"Content-Type": "text/html"})
    listed = [Answer(200, {"items": [{"id": "a"}], "next_cursor": None}), *[page] * 8]
    both = Answer(200, {"items": [{"id": "a"}, {"id": "b"}], "next_cursor": None})
    primer.on("GET", "/v1/agents", lambda request: listed.pop(0) if listed else both)
    before, end = cli.clock.sleep, cli.clock.now + 120

    def sleep(seconds: float) -> None:
        before(seconds)
        if cli.clock.now > end:
            raise KeyboardInterrupt

    cli.clock.sleep = sleep  # type: ignore[method-assign]
    Outage(monkeypatch, cli, calls=9, end=cli.clock.now + 40)
    result = cli("get", "agents", "-w", "-o", "name")
    assert (result.code, result.text) == (130, "agent/a\nagent/b\n")
    assert result.err.count("still trying") == 1


def test_the_first_call_of_a_process_waits_for_a_server_that_answered_the_one_before(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("get", "ws", "-q").code == 0
    Outage(monkeypatch, cli, calls=0, end=cli.clock.now + 30)
    result = cli("get", "ws", "-q")
    assert (result.code, result.text) == (0, f"workspace/{WS}\n")
    assert result.err.count("connection refused; still trying\n") == 1


@pytest.mark.parametrize("argv", [["get", "ws"], ["doctor"]])
def test_a_server_that_answered_long_ago_and_a_diagnosis_are_not_waited_for(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    assert cli("get", "ws").code == 0
    if argv != ["doctor"]:
        monkeypatch.setattr("cli.patience._LATELY_S", 0.0)
    Outage(monkeypatch, cli, calls=0, end=float("inf"))
    started = cli.clock.now
    assert cli(*argv).code in (1, 6)
    assert cli.clock.now - started < 5
