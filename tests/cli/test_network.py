"""The network and the servers on it: retries, redirects, endless bodies; where the token goes and where it never does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Spawn
from tests.cli.fake import TOKEN, WS, Answer, Primer, problem, start


@pytest.fixture
def other() -> Any:
    primer, server = start()
    yield primer, server.url
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_will_pass_is_tried_again_under_the_same_key(cli: Cli, primer: Primer, status: int) -> None:
    answers = [problem(status, ""), problem(status, ""), None]
    create = primer._create

    def shaky(request: Any) -> Answer:
        return answers.pop(0) or create(request, "workspaces")

    primer.on("POST", "/v1/workspaces", shaky)
    result = cli("create", "workspace", "--set", "template_id=a")
    assert (result.code, result.text) == (0, f"workspace/{WS}\n")
    keys = [r.headers["idempotency-key"] for r in primer.sent("POST", "/v1/workspaces")]
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_retries_end_after_three_and_wait_as_the_server_asks(cli: Cli, primer: Primer) -> None:
    answer = problem(429, "rate_limited", "Too many requests.")
    answer.headers["Retry-After"] = "4"
    primer.on("GET", "/v1/agents", answer)
    before = cli.clock.now
    assert cli("get", "agents").code == 6
    assert len(primer.sent("GET", "/v1/agents")) == 4
    assert cli.clock.now - before == 12


def test_a_refusal_is_not_tried_again(cli: Cli, primer: Primer) -> None:
    primer.on("POST", "/v1/workspaces", problem(409, "conflict", "No."))
    assert cli("create", "workspace", "--set", "template_id=a").code == 5
    assert len(primer.sent("POST", "/v1/workspaces")) == 1


def test_a_redirect_elsewhere_is_not_followed(cli: Cli, primer: Primer, other: tuple[Primer, str]) -> None:
    primer.on("GET", "/v1/agents", Answer(302, None, {"Location": f"{other[1]}/v1/agents"}))
    result = cli("get", "agents")
    assert result.code == 6
    assert f"redirects to {other[1]}; nothing was sent there" in result.err
    assert other[0].requests == []


def test_a_redirect_of_a_post_is_not_followed(cli: Cli, primer: Primer) -> None:
    primer.on("POST", "/v1/workspaces", Answer(307, None, {"Location": "/v1/agents"}))
    assert cli("create", "workspace", "--set", "template_id=a").code == 6
    assert primer.sent("POST", "/v1/agents") == []


def test_a_redirect_on_the_same_server_is_followed(cli: Cli, primer: Primer) -> None:
    primer.on("GET", "/v1/agents", Answer(301, None, {"Location": "/v1/llm_providers"}))
    assert cli("get", "agents", "-o", "name").text == "agent/scripted\n"


def test_a_redirect_in_circles_ends(cli: Cli, primer: Primer) -> None:
    primer.on("GET", "/v1/agents", Answer(301, None, {"Location": "/v1/agents"}))
    assert cli("get", "agents").code == 6


def test_html_where_json_is_due_is_one_line(cli: Cli, primer: Primer) -> None:
    primer.on("GET", "/v1/agents", Answer(200, b"<html>login</html>", {"Content-Type": "text/html; charset=utf-8"}))
    result = cli("get", "agents")
    assert (result.code, result.err) == (6, "error: this is not a Primer API: got text/html\n")


def test_an_endless_body_is_given_up(cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.client.MAX_JSON", 1024 * 1024)
    endless = Answer(200, None, {"Content-Type": "application/json"}, pieces=[b"[" * 65536] * 64)
    primer.on("GET", "/v1/agents", endless)
    result = cli("get", "agents")
    assert (result.code, result.err) == (6, "error: this is not a Primer API: the answer is larger than 64 MiB\n")


@pytest.mark.parametrize("body", [b"[" * 100000, b'{"items": 1}', b'{"items": [1]}', b"{", b"\xff\xfe", b"null"])
def test_nonsense_where_a_list_is_due_is_one_line(cli: Cli, primer: Primer, body: bytes) -> None:
    primer.on("GET", "/v1/agents", Answer(200, body, {"Content-Type": "application/json"}))
    result = cli("get", "agents")
    assert result.code == 6
    assert result.err.startswith("error: this is not a Primer API: ")
    assert result.err.count("\n") == 1


def test_an_answer_that_breaks_off_is_unreachable(cli: Cli, primer: Primer) -> None:
    primer.on(
        "GET", "/v1/agents", Answer(200, b"{", {"Content-Type": "application/json", "Content-Length": "99"}, cut=True)
    )
    assert cli("get", "agents").code == 6


def login(cli: Cli, url: str) -> None:
    result = cli("login", url, "--token-stdin", stdin=TOKEN.encode() + b"\n", PRIMECTL_TOKEN="", PRIMECTL_SERVER="")
    assert result.code == 0, result.err


def test_a_contexts_token_is_not_sent_to_another_server(cli: Cli, url: str, other: tuple[Primer, str]) -> None:
    login(cli, url)
    result = cli("--server", other[1], "get", "agents", PRIMECTL_TOKEN="", PRIMECTL_SERVER="")
    assert result.code == 4
    assert f"error: not logged in to {other[1]}\n" in result.err
    assert f"the token of context local belongs to {url} and is not sent elsewhere" in result.err
    assert all("authorization" not in request.headers for request in other[0].requests)


def test_netrc_does_not_bring_another_token(cli: Cli, primer: Primer, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    cli("get", "agents")
    assert primer.requests[-1].headers["authorization"] == f"Bearer {TOKEN}"


def test_login_by_token_stores_a_private_context_and_says_who(cli: Cli, url: str, environment: dict[str, str]) -> None:
    result = cli("login", url, "--token-stdin", stdin=TOKEN.encode() + b"\n", PRIMECTL_TOKEN="")
    assert (result.code, result.text) == (0, f"logged in to {url} as alice (member)\n")
    path = Path(environment["PRIMECTL_CONFIG"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert cli("whoami", PRIMECTL_TOKEN="", PRIMECTL_SERVER="").text.startswith(f"alice (member) on {url}\n")


def test_login_by_password_buys_a_token(cli: Cli, primer: Primer, url: str) -> None:
    result = cli("login", url, "--username", "alice", stdin=b"right\n", PRIMECTL_TOKEN="")
    assert (result.code, result.text) == (0, f"logged in to {url} as alice (member)\n")
    request = primer.sent("POST", "/v1/auth/login")[0]
    assert request.json == {"username": "alice", "password": "right"}
    assert "idempotency-key" not in request.headers


def test_a_second_person_does_not_take_the_context_of_the_first(cli: Cli, primer: Primer, url: str) -> None:
    login(cli, url)
    quiet: dict[str, Any] = {"PRIMECTL_TOKEN": "", "PRIMECTL_SERVER": ""}
    people = {f"Bearer {TOKEN}": "alice", "Bearer token-of-carol": "carol"}
    primer.on("POST", "/v1/auth/login", Answer(200, {"token": "token-of-carol", "expires_at": None}))
    primer.on(
        "GET",
        "/v1/me",
        lambda request: Answer(200, {"username": people[request.headers["authorization"]], "role": "member"}),
    )
    first = "local is for another server or user and stays (primectl context use local); this one is local-carol\n"
    for told in (first, ""):  # again is the same context
        result = cli("login", url, "--username", "carol", stdin=b"right\n", **quiet)
        assert (result.code, result.text) == (0, f"logged in to {url} as carol (member)\n")
        assert result.err == told
        assert cli("context", "list", "-o", "name", **quiet).text == "local\nlocal-carol\n"
    assert cli("whoami", **quiet).text.startswith("carol ")
    assert cli("whoami", "--context", "local", **quiet).text.startswith("alice ")


def test_servers_of_ones_own_on_this_machine_keep_their_tokens_beside_each_other(
    cli: Cli, url: str, other: tuple[Primer, str]
) -> None:
    _, server = start()
    quiet: dict[str, Any] = {"PRIMECTL_TOKEN": "", "PRIMECTL_SERVER": ""}
    try:
        for address, name in ((url, "local"), (other[1], "local-alice"), (server.url, "local-alice-2")):
            result = cli("login", address, "--token-stdin", stdin=TOKEN.encode() + b"\n", **quiet)
            assert result.code == 0
            assert ("local is for another server or user and stays" in result.err) == (name != "local")
            assert ("somebody else" in result.err, f"this one is {name}\n" in result.err) == (False, name != "local")
        for address, name in ((url, "local"), (other[1], "local-alice"), (server.url, "local-alice-2")):
            assert cli("whoami", "--context", name, **quiet).text.startswith(f"alice (member) on {address}\n")
    finally:
        server.shutdown()
        server.server_close()


def test_an_address_that_is_no_utf8_is_a_server_that_cannot_be_reached(cli: Cli) -> None:
    result = cli("--server", "http://h\udcff:1", "get", "agents")
    assert result.code == 6
    assert "error: cannot reach http://h" in result.err


def test_a_context_whose_token_is_over_is_filled_by_whoever_signs_in(cli: Cli, primer: Primer, url: str) -> None:
    login(cli, url)
    quiet: dict[str, Any] = {"PRIMECTL_TOKEN": "", "PRIMECTL_SERVER": ""}
    fresh = Answer(200, {"username": "carol", "role": "member"})
    primer.on("POST", "/v1/auth/login", Answer(200, {"token": "token-of-carol", "expires_at": None}))
    primer.on(
        "GET",
        "/v1/me",
        lambda request: (
            fresh if request.headers["authorization"].endswith("carol") else problem(401, "unauthenticated")
        ),
    )
    assert cli("login", url, "--username", "carol", stdin=b"right\n", **quiet).err == ""
    assert cli("context", "list", "-o", "name", **quiet).text == "local\n"


def test_a_wrong_password_is_4_and_stores_nothing(cli: Cli, url: str, environment: dict[str, str]) -> None:
    result = cli("login", url, "--username", "alice", stdin=b"wrong\n", PRIMECTL_TOKEN="")
    assert (result.code, result.err) == (4, "error: wrong user name or password\n")
    assert not Path(environment["PRIMECTL_CONFIG"]).exists()


def test_a_wrong_token_is_4_and_stores_nothing(cli: Cli, url: str, environment: dict[str, str]) -> None:
    assert cli("login", url, "--token-stdin", stdin=b"nonsense\n", PRIMECTL_TOKEN="").code == 4
    assert not Path(environment["PRIMECTL_CONFIG"]).exists()


def test_login_without_a_terminal_and_without_a_token_is_2(cli: Cli, url: str) -> None:
    assert cli("login", url, PRIMECTL_TOKEN="").code == 2


def test_logout_ends_the_token_and_forgets_it(cli: Cli, primer: Primer, url: str) -> None:
    login(cli, url)
    assert cli("logout", PRIMECTL_TOKEN="", PRIMECTL_SERVER="").text == f"logged out of {url}\n"
    assert len(primer.sent("POST", "/v1/auth/logout")) == 1
    assert cli("whoami", PRIMECTL_TOKEN="", PRIMECTL_SERVER="").code == 4


def test_contexts_are_listed_used_renamed_and_deleted(cli: Cli, url: str) -> None:
    quiet: dict[str, Any] = {"PRIMECTL_TOKEN": "", "PRIMECTL_SERVER": ""}
    login(cli, url)
    cli("login", url, "--context", "work", "--token-stdin", stdin=TOKEN.encode(), **quiet)
    assert cli("context", "list", "-o", "name", **quiet).text == "local\nwork\n"
    assert json.loads(cli("context", "list", "-o", "json", **quiet).out)["items"][1]["current"] is True
    assert cli("context", "use", "local", **quiet).text == "using context local\n"
    assert cli("context", "rename", "local", "laptop", **quiet).code == 0
    assert cli("context", "delete", "work", **quiet).text == "context work deleted\n"
    listed = cli("context", "list", **quiet).text
    assert "laptop" in listed
    assert TOKEN not in listed
    assert cli("context", "use", "lptop", **quiet).code == 3
    assert cli("--context", "nope", "get", "agents", **quiet).code == 3


def test_config_view_shows_where_each_value_comes_from(cli: Cli, url: str) -> None:
    login(cli, url)
    rows = cli("config", "view", "--sources", "--request-timeout", "5s", PRIMECTL_SERVER="").text
    assert "context local" in rows
    assert "--request-timeout" in rows
    assert "PRIMECTL_TOKEN" in rows
    assert TOKEN not in rows


def test_a_config_that_others_can_read_and_a_symlink_are_warned_about(
    cli: Cli, url: str, environment: dict[str, str], tmp_path: Path
) -> None:
    login(cli, url)
    path = Path(environment["PRIMECTL_CONFIG"])
    path.chmod(0o644)
    assert f"warning: {path} can be read by others (mode 0644): chmod 600 {path}" in cli("context", "list").err
    moved = path.rename(tmp_path / "elsewhere.yaml")
    path.symlink_to(moved)
    assert f"warning: {path} is a symlink" in cli("context", "list").err


@pytest.mark.parametrize(
    "text", ["[1", "- 1", "contexts: 5", "contexts: {a: {servr: x}}", "tokn: x", "a: !!python/name:os.x"]
)
def test_a_broken_config_is_2_and_names_the_file(cli: Cli, environment: dict[str, str], text: str) -> None:
    path = Path(environment["PRIMECTL_CONFIG"])
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o600)
    result = cli("get", "agents")
    assert result.code == 2
    assert result.err.startswith(f"error: {path}: ")


def test_the_token_of_a_context_can_be_a_reference(
    cli: Cli, url: str, environment: dict[str, str], tmp_path: Path
) -> None:
    path = Path(environment["PRIMECTL_CONFIG"])
    path.parent.mkdir()
    (tmp_path / "token").write_text(TOKEN + "\n")
    for reference in ("env:WORK_TOKEN", f"file:{tmp_path / 'token'}"):
        path.write_text(f'current-context: w\ncontexts:\n  w: {{server: "{url}", token: "{reference}"}}\n')
        path.chmod(0o600)
        assert cli("whoami", PRIMECTL_TOKEN="", PRIMECTL_SERVER="", WORK_TOKEN=TOKEN).code == 0
    path.write_text(f'current-context: w\ncontexts:\n  w: {{server: "{url}", token: "env:NOT_SET"}}\n')
    assert cli("whoami", PRIMECTL_TOKEN="", PRIMECTL_SERVER="").code == 4


@pytest.mark.parametrize("flag", ["-v", "-vv"])
def test_verbose_shows_calls_and_never_the_token(cli: Cli, primer: Primer, flag: str) -> None:
    secret = {"api_key": "sk-very-secret", "note": "shown"}
    primer.store["llm_providers"]["scripted"]["config"] = secret
    result = cli(flag, "get", "llm", "scripted", "-q", PRIMECTL_DEBUG="1")
    assert "GET http://127.0.0.1" in result.err
    assert TOKEN not in result.err
    assert "sk-very-secret" not in result.err
    assert ("shown" in result.err) is (flag == "-vv")


def test_debug_shows_the_traceback_without_the_token(cli: Cli, primer: Primer) -> None:
    primer.on("GET", "/v1/agents", problem(409, "conflict", "No."))
    result = cli("get", "agents", PRIMECTL_DEBUG="1")
    assert "Traceback" in result.err
    assert TOKEN not in result.err


def test_global_flags_work_before_and_after_the_verb(cli: Cli, primer: Primer) -> None:
    before, after = cli("-o", "name", "get", "llm"), cli("get", "llm", "-o", "name")
    assert before.out == after.out == b"llm_provider/scripted\n"


def test_help_imports_nothing_heavy(spawn: Spawn) -> None:
    code = (
        "import sys\nsys.argv = ['primectl', '--help']\nfrom cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code, done.code\n"
        "print(sorted({'django', 'requests', 'websocket', 'yaml', 'rest_framework'} & set(sys.modules)))\n"
    )
    process = spawn(args=["-c", code])
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, b"")
    assert out.splitlines()[-1] == b"[]"


def test_importing_every_module_imports_nothing_of_the_server_and_nothing_heavy(spawn: Spawn) -> None:
    code = (
        "import importlib, pkgutil, sys, cli\n"
        "for module in pkgutil.walk_packages(cli.__path__, 'cli.'):\n    importlib.import_module(module.name)\n"
        "heavy = {'django', 'rest_framework', 'requests', 'websocket', 'yaml', 'primer_site', 'accounts', 'workspaces'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    out, err = spawn(args=["-c", code]).communicate(timeout=30)
    assert (out, err) == (b"[]\n", b"")
