"""Where each setting comes from, colour, retries by the clock of the server, versions, the private directory."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from cli import causes
from cli.config import is_loopback
from cli.output import Console
from cli.versions import WARNING
from tests.cli.conftest import Cli
from tests.cli.fake import TOKEN, WS, Answer, Primer, problem

# name: (flag and its value, variable, key of the context, default)
SETTINGS: dict[str, tuple[list[str], str, str, str]] = {
    "server": (["--server", "http://127.0.0.1:1111"], "PRIMECTL_SERVER", "server", "http://127.0.0.1:8000"),
    "token": (["--token", "flag-token-0123456789"], "PRIMECTL_TOKEN", "token", ""),
    "output": (["-o", "json"], "PRIMECTL_OUTPUT", "output", ""),
    "ca-file": (["--ca-file", "/flag.pem"], "PRIMECTL_CA_FILE", "ca-file", ""),
    "request-timeout": (["--request-timeout", "5s"], "PRIMECTL_REQUEST_TIMEOUT", "", "30s"),
}
VALUES = {"server": "http://127.0.0.1:{}", "token": "token-of-{}-0123456789", "output": "yaml", "ca-file": "/{}.pem"}
NOTHING: dict[str, Any] = {f"PRIMECTL_{name}": "" for name in ("SERVER", "TOKEN", "OUTPUT", "CA_FILE", "CONTEXT")}


def value(name: str, place: str) -> str:
    if name == "request-timeout":
        return {"env": "6s", "context": "7s"}[place]
    numbers = {"env": "2222", "context": "3333"}
    return VALUES[name].format(numbers[place] if name == "server" else place)


def write_config(environment: dict[str, str], values: dict[str, str]) -> None:
    path = Path(environment["PRIMECTL_CONFIG"])
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(json.dumps({"current-context": "w", "contexts": {"w": values}}))
    path.chmod(0o600)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_a_flag_beats_the_variable_that_beats_the_context_that_beats_the_default(
    cli: Cli, environment: dict[str, str], name: str
) -> None:
    flag, variable, key, default = SETTINGS[name]

    def found(*flags: str, **settings: str) -> tuple[str, str]:
        shown = ["-o", "json"] if name != "output" else []
        # With -o as the thing itself its effect is read from the row of the table.
        text = cli("config", "view", "--sources", *shown, *flags, **{**NOTHING, **settings}).text
        if text.startswith("{"):
            row = json.loads(text)[name]
            return row["value"], row["source"]
        row = next(line for line in text.splitlines() if line.startswith(f"{name} ")).split(maxsplit=2)
        return row[1].replace("-", "", row[1] == "-"), row[2]

    default_found = found()[0]
    assert default_found == default
    if key:
        write_config(environment, {key: value(name, "context")})
        shown = value(name, "context") if name != "token" else "****6789"
        assert found() == (shown, "context w")
    given = value(name, "env")
    shown = given if name != "token" else "****6789"
    assert found(**{variable: given}) == (shown, variable)
    if name != "output":
        source = flag[0]
        assert found(*flag, **{variable: given})[1] == source


def test_the_context_is_chosen_by_flag_then_variable_then_file(cli: Cli, environment: dict[str, str]) -> None:
    path = Path(environment["PRIMECTL_CONFIG"])
    path.parent.mkdir(mode=0o700)
    contexts = {name: {"server": f"http://127.0.0.1:{port}"} for name, port in (("a", 1), ("b", 2), ("c", 3))}
    path.write_text(json.dumps({"current-context": "a", "contexts": contexts}))
    path.chmod(0o600)

    def server(*flags: str, **settings: str) -> str:
        text = cli("config", "view", "-o", "json", *flags, **{**NOTHING, **settings}).text
        return str(json.loads(text)["server"]["value"])[-1]

    assert server() == "1"
    assert server(PRIMECTL_CONTEXT="b") == "2"
    assert server("--context", "c", PRIMECTL_CONTEXT="b") == "3"


@pytest.mark.parametrize(
    ("flag", "env", "tty", "colour"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"CLICOLOR_FORCE": "1"}, True, False),
        ("auto", {"CLICOLOR_FORCE": "1"}, False, True),
        ("auto", {"CLICOLOR_FORCE": "0"}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"TERM": "dumb", "CLICOLOR_FORCE": "1"}, True, True),
    ],
)
def test_who_decides_about_colour(flag: str, env: dict[str, str], tty: bool, colour: bool) -> None:
    import io

    console = Console(io.BytesIO(), io.BytesIO(), io.BytesIO(), env=env, colour_wish=flag)
    assert console.colours(tty) is colour


def test_colour_of_a_program_reaches_a_terminal_and_no_other_sequence_does(cli: Cli, primer: Primer) -> None:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    output = b"\x1b[31mred\x1b[0m \x1b]0;t\x07"
    primer.exec_lines = [
        {"id": "exec-1"},
        {"stream": "stdout", "offset": 0, "data": output.decode(), "encoding": "utf-8"},
        {"result": {"id": "exec-1", "ended_by": "exit", "exit_code": 0, "stdout_bytes": len(output)}},
    ]
    argv = ("workspace", "exec", WS, "--", "x")
    assert cli(*argv, out_tty=True).out.startswith(b"\x1b[31mred\x1b[0m \\x1b]0;t\\x07")
    assert b"\x1b" not in cli(*argv, out_tty=True, NO_COLOR="1").out
    assert b"\x1b" not in cli("--color", "never", *argv, out_tty=True).out
    assert cli(*argv, NO_COLOR="1").out == output  # a pipe gets the bytes, whatever anybody thinks of colour


def test_a_retry_waits_until_the_moment_that_the_server_names() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=5), usegmt=True)
    assert 3 < causes.pause_before(0, soon) <= 5
    assert causes.pause_before(0, "3") == 3
    assert causes.pause_before(0, "86400") == 10
    past = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    assert causes.pause_before(0, past) == 0
    assert 0.1 < causes.pause_before(0, "soon") < 0.3
    assert causes.pause_before(2, "") > causes.pause_before(0, "")


def test_a_server_that_took_the_request_and_is_silent_is_not_asked_again(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    release = threading.Event()

    def silent(request: Any) -> Answer:
        release.wait(20)
        return Answer(204)

    primer.on("GET", "/v1/agents", silent)
    result = cli("get", "agents", "--request-timeout", "200ms")
    release.set()
    assert (result.code, len(primer.sent("GET", "/v1/agents"))) == (6, 1)
    assert "no answer in time" in result.err


def test_o_json_makes_every_failure_one_object(cli: Cli, primer: Primer, folder: Path) -> None:
    primer.on("GET", "/v1/agents/a", problem(409, "conflict", "No."))
    for argv in (
        ["get", "agent", "a"],
        ["get", "agnts"],
        ["get", "agent", "nobody"],
        ["create", "-f", "none.yaml"],
        ["wait", "agent/a", "--for=x"],
        ["delete", "agent", "nobody"],
        ["--server", "http://127.0.0.1:1", "get", "agents"],
    ):
        result = cli(*argv, "-o", "json")
        assert result.out == b""
        lines = result.err.splitlines()
        assert len(lines) == 1, argv
        assert set(json.loads(lines[0])["error"]) == {"code", "message", "errors", "hint", "request_id"}


def test_secrets_of_every_kind_are_masked_in_a_trace(cli: Cli, primer: Primer) -> None:
    secrets = ["sk-1", "pw-2", "pem-3", "kube-4", "env-5", "tok-6"]
    body = {
        "id": "x",
        "api_key": "sk-1",
        "password": "pw-2",
        "config": {
            "tls": {"key": "pem-3", "cert": "shown-cert"},
            "connection": {"kind": "kubeconfig", "content": "kube-4"},
        },
        "env": {"A": {"secret": "env-5"}},
        "items": [{"token": "tok-6"}],
        "max_tokens": 5,
        "content": "shown-content",
    }
    primer.on("POST", "/v1/x", Answer(200, body))
    result = cli("-vv", "api", "POST", "/v1/x", "--input", "-", stdin=json.dumps(body).encode())
    assert [secret for secret in [*secrets, TOKEN] if secret in result.err] == []
    assert "shown-cert" in result.err
    assert "shown-content" in result.err


def test_another_major_version_is_told_once_a_day_and_to_people_only(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.2.0")
    primer.on("GET", "/v1/capabilities", Answer(200, {"version": "2.0.0"}))
    assert cli("get", "agents").err == "No agents found.\n"
    assert primer.sent("GET", "/v1/capabilities") == []
    assert cli("get", "agents", err_tty=True).err == f"No agents found.\n{WARNING}\n"
    assert WARNING not in cli("get", "agents", err_tty=True).err
    (kept,) = (tmp_path / ".cache" / "primectl").glob("version-*.json")
    yesterday = json.loads(kept.read_text())
    kept.write_text(json.dumps({**yesterday, "at": yesterday["at"] - 86_401}))
    assert WARNING in cli("get", "agents", err_tty=True).err
    assert len(primer.sent("GET", "/v1/capabilities")) == 2


def test_a_server_that_does_not_tell_its_version_costs_nothing(cli: Cli, primer: Primer, tmp_path: Path) -> None:
    primer.on("GET", "/v1/capabilities", problem(500, "internal"))
    for _ in range(3):
        result = cli("get", "agents", err_tty=True)
        assert (result.code, result.err) == (0, "No agents found.\n")
    assert len(primer.sent("GET", "/v1/capabilities")) == 1
    (tmp_path / "full").write_text("")
    assert cli("get", "agents", err_tty=True, XDG_CACHE_HOME=str(tmp_path / "full")).code == 0
    assert len(primer.sent("GET", "/v1/capabilities")) == 1  # where nothing can be kept, nothing is asked


def test_a_directory_that_others_can_write_is_warned_about(
    cli: Cli, environment: dict[str, str], tmp_path: Path
) -> None:
    write_config(environment, {})
    place = Path(environment["PRIMECTL_CONFIG"]).parent
    place.chmod(0o755)
    assert "can be" not in cli("context", "list").err  # one that was named may be a shared one
    place.chmod(0o777)
    assert f"warning: {place} can be written by others (mode 0777): chmod 700 {place}\n" in cli("context", "list").err
    own = tmp_path / "xdg" / "primectl"
    own.mkdir(parents=True, mode=0o755)
    (own / "config.yaml").write_text("contexts: {}\n")
    (own / "config.yaml").chmod(0o600)
    said = cli("context", "list", PRIMECTL_CONFIG="", XDG_CONFIG_HOME=str(tmp_path / "xdg")).err
    assert f"warning: {own} can be opened by others (mode 0755): chmod 700 {own}\n" in said


def test_bare_primectl_is_shorter_than_its_help_and_names_every_command(cli: Cli) -> None:
    short, whole = cli().text, cli("--help").text
    assert len(short.splitlines()) < len(whole.splitlines())
    assert "--insecure-skip-tls-verify" not in short
    assert "  api-resources" in short


def test_without_utf8_our_own_words_are_ascii(cli: Cli) -> None:
    assert cli("get", "--help", LANG="C").out.isascii()
    assert cli("session", "run", "--help", LANG="C.UTF-8").text != ""


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "127.9.8.7", "localhost", "LOCALHOST:1", "[::1]:8000", "[::ffff:127.0.0.1]"])  # fmt: skip
def test_this_machine_is_loopback(host: str) -> None:
    assert is_loopback(f"http://{host}")


@pytest.mark.parametrize(
    "host",
    ["127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "127.", "128.0.0.1", "0.0.0.0", "[::2]", "[::ffff:10.0.0.1]"],
)  # fmt: skip
def test_a_name_that_looks_like_loopback_is_not(host: str) -> None:
    assert not is_loopback(f"http://{host}:8000")


def test_a_token_for_a_name_that_looks_like_loopback_is_warned_about(cli: Cli) -> None:
    err = cli("whoami", "--server", "http://127.evil.invalid:9", "--token", TOKEN, "--request-timeout", "2s").err
    assert "warning: http://127.evil.invalid:9 is not encrypted" in err
