"""An order that was carried out and whose answer was lost on the way: sent again, and told as what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from cli.client import Client
from tests.cli.conftest import Cli
from tests.cli.fake import WS, Answer, Primer, Request, problem
from tests.recipe import PUBLISHED

AGENT = "code-runner.yaml"
NOTE = "note: an earlier try's answer was lost; it is not there now\n"


class Lost:
    """The first call of `method` breaks off: with `carried_out` after the server did it, else before."""

    def __init__(self, patch: pytest.MonkeyPatch, method: str, *, carried_out: bool = True, why: str = "") -> None:
        exchange: Callable[..., requests.Response] = Client._exchange
        self.left = 1

        def shaky(client: Client, method_: str, *args: Any, **settings: Any) -> requests.Response:
            if method_ != method or not self.left:
                return exchange(client, method_, *args, **settings)
            self.left -= 1
            if carried_out:
                exchange(client, method_, *args, **settings).close()
            raise requests.ConnectionError(why or "Connection aborted.")

        patch.setattr(Client, "_exchange", shaky)


@pytest.fixture(autouse=True)
def there(primer: Primer) -> None:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}


def test_a_delete_that_had_come_through_is_a_success(cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[Request] = []

    def once(request: Request) -> Answer:
        gone.append(request)
        return Answer(204) if len(gone) == 1 else problem(404, "not_found")

    primer.on("DELETE", f"/v1/workspaces/{WS}", once)
    primer.on("GET", f"/v1/workspaces/{WS}", lambda request: problem(404, "not_found"))
    Lost(monkeypatch, "DELETE")
    result = cli("delete", "workspace", WS)
    assert (result.code, result.text, len(gone)) == (0, f"workspace/{WS} deleted\n", 2)
    assert result.err == NOTE


def shaky(primer: Primer, path: str, status: int) -> list[Request]:
    """A proxy whose first answer to a DELETE of `path` is its own page; then the server says that nothing is there."""
    seen: list[Request] = []

    def answer(request: Request) -> Answer:
        seen.append(request)
        page = Answer(status, b"<html>", {"Content-Type": "text/html"})
        return page if len(seen) == 1 else problem(404, "not_found")

    primer.on("DELETE", path, answer)
    return seen


@pytest.mark.parametrize(("status", "code"), [(502, 0), (503, 3), (504, 0)])
@pytest.mark.parametrize(
    "argv", [["delete", "agent", "nevermade", "--no-wait"], ["api", "DELETE", "/v1/agents/nevermade"]]
)
def test_a_proxy_that_had_nobody_to_give_a_delete_to_deleted_nothing(
    cli: Cli, primer: Primer, argv: list[str], status: int, code: int
) -> None:
    seen = shaky(primer, "/v1/agents/nevermade", status)
    result = cli(*argv)
    assert (result.code, len(seen), result.err.count(NOTE)) == (code, 2, int(code == 0)), result.err
    assert ("deleted" in result.text) == (code == 0 and argv[0] == "delete")


def test_a_file_is_not_removed_by_the_end_of_its_workspace(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not found by the second try is the workspace: what the first one did nobody knows."""
    primer.on("DELETE", f"/v1/workspaces/{WS}/files", lambda request: problem(404, "not_found"))
    primer.on("GET", f"/v1/workspaces/{WS}", lambda request: problem(404, "not_found"))
    Lost(monkeypatch, "DELETE", carried_out=False)
    result = cli("workspace", "files", "rm", WS, "a")
    assert (result.code, result.text) == (3, "")
    assert f"error: workspace {WS} not found\n" in result.err


@pytest.mark.parametrize(
    "argv", [["workspace", "files", "rm", WS, "a"], ["api", "DELETE", f"/v1/workspaces/{WS}/files?path=a"]]
)
def test_a_file_that_was_removed_by_the_first_try_is_no_failure(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    primer.files["a"] = b"x"
    Lost(monkeypatch, "DELETE")
    result = cli(*argv)
    assert (result.code, result.err, primer.files) == (0, NOTE, {})


def test_what_was_not_there_is_not_found_when_no_try_can_have_removed_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lost(monkeypatch, "DELETE", carried_out=False, why="Connection refused")
    assert cli("workspace", "files", "rm", WS, "a").code == 3


def put(cli: Cli, *argv: str) -> Any:
    return cli("workspace", "files", "put", WS, "a", *argv)


@pytest.mark.parametrize("source", [["--content", "new"], ["-f", "-"], ["-f", "local"]])
def test_an_upload_that_had_come_through_is_a_success(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, folder: Path, source: list[str]
) -> None:
    (folder / "local").write_bytes(b"new")
    Lost(monkeypatch, "PUT")
    result = cli("workspace", "files", "put", WS, "a", *source, "--no-clobber", stdin=b"new")
    assert (result.code, result.text) == (0, f"{WS}:a written (3 bytes)\n")
    assert primer.files["a"] == b"new"


@pytest.mark.parametrize("theirs", [b"other", b"ne", b"newer", b""])
def test_a_file_of_somebody_else_is_still_in_the_way(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, theirs: bytes
) -> None:
    primer.files["a"] = theirs
    Lost(monkeypatch, "PUT", carried_out=False)
    result = put(cli, "--content", "new", "--no-clobber")
    assert (result.code, primer.files["a"]) == (5, theirs)
    assert "exists, or was changed since" in result.err


def test_a_file_that_is_gone_meanwhile_is_not_taken_for_ours(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch
) -> None:
    primer.on("PUT", f"/v1/workspaces/{WS}/files", lambda request: problem(412, "precondition_failed"))
    Lost(monkeypatch, "PUT", carried_out=False)
    assert put(cli, "--content", "new", "--if-match", '"x"').code == 5


def guarded(primer: Primer) -> None:
    """PUT of the agent only while If-Match names what is stored, as a server does."""

    def answer(request: Request) -> Answer:
        held = f'"{primer.versions["code-runner"]}.'
        if not request.headers["if-match"].startswith(held):
            return problem(412, "precondition_failed", "It was changed.")
        return primer._one(request, "agents", "code-runner")

    primer.on("PUT", "/v1/agents/code-runner", answer)


@pytest.fixture
def agent(cli: Cli, primer: Primer, folder: Path) -> Path:
    """The recipe's agent, stored; its file then says something else."""
    file = folder / AGENT
    file.write_text(PUBLISHED[AGENT].replace("<llm>", "scripted").replace("<model>", "m"))
    assert cli("apply", "-f", AGENT).code == 0
    guarded(primer)
    file.write_text(file.read_text().replace("description: Runs", "description: Still runs"))
    return file


def test_an_apply_that_had_come_through_is_configured(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, agent: Path
) -> None:
    Lost(monkeypatch, "PUT")
    result = cli("apply", "-f", AGENT)
    assert (result.code, result.text) == (0, "agent/code-runner configured\n"), result.err
    assert primer.store["agents"]["code-runner"]["description"].startswith("Still runs")


def test_a_change_of_somebody_else_is_still_told(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, agent: Path
) -> None:
    exchange: Callable[..., requests.Response] = Client._exchange

    def meddled(client: Client, method: str, *args: Any, **settings: Any) -> requests.Response:
        if method == "PUT" and primer.versions["code-runner"] == 1:
            primer.versions["code-runner"] = 2
            primer.store["agents"]["code-runner"]["description"] = "theirs"
            raise requests.ConnectionError("Connection aborted.")
        return exchange(client, method, *args, **settings)

    monkeypatch.setattr(Client, "_exchange", meddled)
    result = cli("apply", "-f", AGENT)
    assert result.code == 5
    assert "changed by someone else since you read it" in result.err
    assert primer.store["agents"]["code-runner"]["description"] == "theirs"
