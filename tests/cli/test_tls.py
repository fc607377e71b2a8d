"""TLS against a real server with a CA of our own: trusted only when it was given, and only for its name and time."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.certificates import Authority
from tests.cli.conftest import Cli
from tests.cli.fake import SESS, TOKEN, Primer, recipe_events, start

Serve = Callable[[ssl.SSLContext], tuple[Primer, str]]


@contextmanager
def serving(context: ssl.SSLContext) -> Iterator[tuple[Primer, str]]:
    primer, server = start(context)
    try:
        yield primer, server.url
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda context: stack.enter_context(serving(context))


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


def test_the_right_ca_is_trusted(cli: Cli, serve: Serve, ours: Authority) -> None:
    primer, url = serve(ours.context())
    result = cli("get", "llm", "-o", "name", "--server", url, "--ca-file", str(ours.file))
    assert (result.code, result.text, result.err) == (0, "llm_provider/scripted\n", "")
    assert primer.requests[-1].headers["authorization"] == f"Bearer {TOKEN}"
    assert cli("get", "llm", "-o", "name", PRIMECTL_SERVER=url, PRIMECTL_CA_FILE=str(ours.file)).code == 0


def refused(cli: Cli, primer: Primer, url: str, *flags: str) -> str:
    before = cli.clock.now
    result = cli("get", "llm", "--server", url, *flags)
    assert (result.code, result.out) == (6, b"")
    assert primer.requests == []  # nothing was sent, the token least of all
    assert cli.clock.now == before  # a certificate does not get better by asking again
    return result.err


def test_a_ca_that_nobody_gave_is_not_trusted(cli: Cli, serve: Serve, ours: Authority) -> None:
    primer, url = serve(ours.context())
    assert refused(cli, primer, url) == (
        f"error: cannot reach {url}: its certificate is not trusted\n"
        "hint: give the CA that signed it with --ca-file PATH\n"
    )


def test_another_ca_is_not_trusted(cli: Cli, serve: Serve, ours: Authority, tmp_path: Path) -> None:
    primer, url = serve(ours.context())
    other = Authority(tmp_path, "other")
    assert "its certificate is not trusted" in refused(cli, primer, url, "--ca-file", str(other.file))


@pytest.mark.parametrize("host", ["primer.example", "127.0.0.2"])
def test_a_certificate_for_another_name_is_not_trusted(cli: Cli, serve: Serve, ours: Authority, host: str) -> None:
    primer, url = serve(ours.context(host=host))
    said = refused(cli, primer, url, "--ca-file", str(ours.file))
    assert said == (
        f"error: cannot reach {url}: its certificate is for another name\n"
        "hint: use the name that the certificate is for\n"
    )


def test_an_expired_certificate_is_not_trusted(cli: Cli, serve: Serve, ours: Authority) -> None:
    primer, url = serve(ours.context(expired=True))
    assert "its certificate has expired" in refused(cli, primer, url, "--ca-file", str(ours.file))


def test_not_checking_is_possible_and_warned_about_each_time(cli: Cli, serve: Serve, ours: Authority) -> None:
    _, url = serve(ours.context(expired=True))
    for _ in range(2):
        result = cli("get", "llm", "-o", "name", "--server", url, "--insecure-skip-tls-verify")
        assert (result.code, result.text) == (0, "llm_provider/scripted\n")
        assert result.err == "warning: TLS certificates are not checked; whoever answers gets the token\n"


def test_tls_where_none_is_spoken_says_so(cli: Cli, primer: Primer, url: str) -> None:
    said = refused(cli, primer, url.replace("http:", "https:"))
    assert "it does not speak TLS" in said
    assert "write http:// if it is meant to" in said


@pytest.mark.parametrize("content", [None, b"this is no certificate\n", b""])
def test_a_ca_file_that_is_none_is_2(
    cli: Cli, serve: Serve, ours: Authority, tmp_path: Path, content: bytes | None
) -> None:
    _, url = serve(ours.context())
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    result = cli("get", "llm", "--server", url, "--ca-file", str(path))
    assert result.code == 2
    assert str(path) in result.err


def test_the_ca_of_a_login_is_remembered_with_its_context(cli: Cli, serve: Serve, ours: Authority) -> None:
    _, url = serve(ours.context())
    quiet: dict[str, Any] = {"PRIMECTL_TOKEN": "", "PRIMECTL_SERVER": ""}
    result = cli("login", url, "--ca-file", str(ours.file), "--token-stdin", stdin=TOKEN.encode(), **quiet)
    assert result.code == 0, result.err
    assert cli("whoami", **quiet).code == 0


@pytest.mark.parametrize("flags", [["--ca-file", "{ca}"], ["--insecure-skip-tls-verify"]])
def test_the_live_transcript_speaks_tls_as_well(cli: Cli, serve: Serve, ours: Authority, flags: list[str]) -> None:
    primer, url = serve(ours.context())
    primer.store["sessions"][SESS] = {"id": SESS, "status": "running", "last_seq": 0}
    primer.events = recipe_events()
    primer.frames = lambda after: [event for event in primer.events if event["seq"] > after]
    result = cli("--server", url, *(flag.format(ca=ours.file) for flag in flags), "session", "attach", SESS)
    assert (result.code, result.text.splitlines()[-1]) == (0, "ended: completed")
    assert any(request.path.startswith("/ws/") for request in primer.requests)
    assert not any(request.path.endswith("/events") and request.path.startswith("/v1/") for request in primer.requests)


def test_doctor_judges_tls(cli: Cli, serve: Serve, ours: Authority) -> None:
    _, url = serve(ours.context())
    assert (
        "ok    tls         the certificate is trusted\n"
        in cli("doctor", "--server", url, "--ca-file", str(ours.file)).text
    )
    assert (
        "warn  tls         the certificate is not checked\n"
        in cli("doctor", "--server", url, "--insecure-skip-tls-verify").text
    )
    assert "its certificate is not trusted" in cli("doctor", "--server", url).text
