"""A download of a file that breaks off: it goes on where it ended, or the sentence says why it does not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Result
from tests.cli.fake import WS, Answer, Primer, Request, Server, problem
from tests.cli.test_files import DOWNLOAD

DATA = bytes(range(256)) * 4096  # 1 MiB
SIZE = len(DATA)
ETAG = '"one"'
STEP = 300_000  # bytes after which a connection breaks: more than the client reads at once


@dataclass
class Flaky:
    """A file whose downloads break off every `step` bytes; `then` answers in its place once something has been asked again."""

    data: bytes = DATA
    etag: str = ETAG
    step: int = STEP
    then: Callable[[Request], Answer] | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, request: Request) -> Answer:
        wanted, proof = request.headers.get("range", ""), request.headers.get("if-range", "")
        self.asked.append((wanted, proof))
        if wanted and self.then is not None:
            return self.then(request)
        headers = {"Content-Type": "application/octet-stream", "ETag": self.etag}
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and proof == self.etag else 0  # type: ignore[index]
        headers["Content-Length"] = str(len(self.data) - start)
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(self.data) - 1}/{len(self.data)}"
        part = self.data[start : start + self.step]
        return Answer(206 if start else 200, part, headers, cut=start + len(part) < len(self.data))


@pytest.fixture
def flaky(primer: Primer, folder: Path) -> Flaky:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    primer.files["big"] = DATA
    file = Flaky()
    primer.on("GET", DOWNLOAD, file)
    return file


def saved(cli: Cli) -> Result:
    return cli("cp", f"{WS}:big", "here")


def written(cli: Cli) -> Result:
    return cli("cp", f"{WS}:big", "-")


def nothing_is_left() -> bool:
    return not [name for name in os.listdir() if name == "here" or name.startswith(".primectl")]


# what goes on


def test_a_download_that_breaks_off_again_and_again_goes_on_where_it_ended(cli: Cli, flaky: Flaky) -> None:
    assert (saved(cli).code, Path("here").read_bytes() == DATA) == (0, True)
    starts = [int(wanted[6:-1]) for wanted, _ in flaky.asked[1:]]
    assert starts == sorted(set(starts))
    assert starts[0] > 0
    assert {proof for _, proof in flaky.asked[1:]} == {ETAG}


@pytest.mark.parametrize(
    "argv", [["cp", f"{WS}:big", "-"], ["files", "get", WS, "big", "-O", "-"], ["files", "cat", WS, "big"]]
)
def test_what_is_printed_has_each_byte_once(cli: Cli, flaky: Flaky, argv: list[str]) -> None:
    result = cli(*(argv if argv[0] == "cp" else ["workspace", *argv]))
    assert (result.code, result.out == DATA, result.err) == (0, True, "")
    assert len(flaky.asked) > 2


def test_a_server_that_answers_again_after_a_while_ends_what_it_began(cli: Cli, flaky: Flaky) -> None:
    busy = iter([Answer(502, None, {}), problem(503, "engine_unavailable"), Answer(502, None, {})])

    def restarted(request: Request) -> Answer:
        flaky.then = None if (answer := next(busy, None)) is None else restarted
        return answer or flaky(request)

    flaky.then = restarted
    assert (saved(cli).code, Path("here").read_bytes() == DATA) == (0, True)


# what does not


def test_a_file_that_changed_meanwhile_is_a_conflict_and_nothing_of_it_is_kept(cli: Cli, flaky: Flaky) -> None:
    changed = Flaky(DATA[::-1], '"two"')
    flaky.then = changed
    result = saved(cli)
    sentence = f"error: {WS}:big changed while it was downloaded; nothing was kept\nhint: run it again\n"
    assert (result.code, result.err) == (5, sentence)
    assert nothing_is_left()
    assert len(changed.asked) == 1


def test_of_a_changed_file_what_was_printed_stays_and_is_counted(cli: Cli, flaky: Flaky) -> None:
    flaky.then = Flaky(DATA[::-1], '"two"')
    result = written(cli)
    assert result.code == 5
    assert 0 < len(result.out) < SIZE
    assert DATA.startswith(result.out)
    count = f"{len(result.out):,}".replace(",", " ")
    assert result.err.splitlines() == [
        f"warning: {WS}:big is not complete: {count} bytes of it were written",
        f"error: {WS}:big changed while it was downloaded; what was written is not all of it",
        "hint: run it again",
    ]


def test_a_directory_in_the_place_of_the_file_is_a_change_too(cli: Cli, flaky: Flaky) -> None:
    flaky.then = lambda request: Answer(200, b"tar", {"Content-Type": "application/x-tar"})
    result = saved(cli)
    assert (result.code, "changed while" in result.err, nothing_is_left()) == (5, True, True)


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (problem(409, "workspace_lost", "Its container is gone."), 1, "Its container is gone."),
        (problem(409, "workspace_not_running", "The workspace is stopped."), 5, "stopped"),
        (problem(404, "not_found"), 3, f"{WS}:big not found"),
        (problem(401, "unauthenticated"), 4, "the token is not valid"),
        (problem(503, "engine_unavailable", "The engine does not answer."), 6, "The engine does not answer."),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)  # fmt: skip
def test_a_problem_instead_of_the_rest_has_its_own_sentence(
    cli: Cli, flaky: Flaky, answer: Answer, code: int, words: str
) -> None:
    flaky.then = lambda request: answer
    result = saved(cli)
    assert (result.code, words in result.err, "broke off" in result.err) == (code, True, False), result.err
    assert nothing_is_left()


@pytest.mark.parametrize("content_range", [None, "bytes 0-99/100", f"bytes 1-{SIZE - 1}/{SIZE}"])
def test_a_rest_that_is_not_the_one_asked_for_is_never_put_behind_what_came(
    cli: Cli, flaky: Flaky, content_range: str | None
) -> None:
    headers = {"ETag": ETAG} | ({"Content-Range": content_range} if content_range else {})
    flaky.then = lambda request: Answer(206, b"x" * 100, headers)
    result = saved(cli)
    assert (result.code, "cannot be had from its middle" in result.err) == (6, True), result.err
    assert nothing_is_left()


def test_more_than_what_was_announced_is_not_the_file(cli: Cli, flaky: Flaky) -> None:
    def endless(request: Request) -> Answer:
        start = request.headers["range"][6:-1]
        headers = {"ETag": ETAG, "Content-Range": f"bytes {start}-{SIZE - 1}/{SIZE}"}
        return Answer(206, None, headers, pieces=[DATA, DATA])

    flaky.then = endless
    result = saved(cli)
    assert (result.code, f"of {SIZE} bytes" in result.err, nothing_is_left()) == (6, True, True)


def test_a_download_that_gets_no_further_is_given_up_after_a_few_tries(cli: Cli, flaky: Flaky) -> None:
    def stuck(request: Request) -> Answer:
        answer = flaky_again(request)
        answer.body, answer.cut = b"", True
        return answer

    flaky_again = Flaky()
    flaky.then = stuck
    result = written(cli)
    assert result.code == 6
    assert result.err.splitlines()[-1] == f"error: the download broke off after {len(result.out)} of {SIZE} bytes"
    assert len(flaky.asked) == 4


@pytest.mark.parametrize("etag", ["", 'W/"one"'])
def test_without_the_tag_of_one_version_nothing_is_gone_on_with(cli: Cli, flaky: Flaky, etag: str) -> None:
    flaky.etag = etag
    result = saved(cli)
    assert (result.code, "the download broke off after" in result.err, len(flaky.asked)) == (6, True, 1)
    assert nothing_is_left()


def test_a_server_that_is_gone_is_tried_for_as_long_as_a_restart_takes(
    cli: Cli, flaky: Flaky, served: tuple[Primer, Server]
) -> None:
    server = served[1]

    def first(request: Request) -> Answer:
        answer = flaky(request)
        server.shutdown()
        server.socket.close()
        return answer

    served[0].on("GET", DOWNLOAD, first)
    before = cli.clock.now
    result = saved(cli)
    assert (result.code, "cannot reach" in result.err, nothing_is_left()) == (6, True, True), result.err
    assert cli.clock.now - before >= 60


# a directory, whose archive has no middle to go on from


@pytest.mark.parametrize("target", ["here", "-"])
def test_an_archive_that_breaks_off_gives_the_reason_that_the_server_has(
    cli: Cli, primer: Primer, folder: Path, target: str
) -> None:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    primer.on("GET", DOWNLOAD, Answer(200, None, {"Content-Type": "application/x-tar"}, pieces=[b"\0"], cut=True))
    files = DOWNLOAD.removesuffix("/download")
    for answer, code, words in (
        (problem(409, "workspace_lost", "Its container is gone."), 1, "Its container is gone."),
        (Answer(200, {"items": [], "next_cursor": None}), 6, "the download broke off"),
    ):
        primer.on("GET", files, answer)
        result = cli("cp", f"{WS}:", target)
        assert (result.code, words in result.err) == (code, True), result.err
    assert [request.query.get("path") for request in primer.sent("GET", files)] == [None, None]
    assert len(primer.sent("GET", DOWNLOAD)) == 2
    assert nothing_is_left()
