"""`run` looks before it starts: what can be known to go wrong costs no workspace."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake import WS, Answer, Primer

FILES = f"/v1/workspaces/{WS}/files"


@pytest.fixture(autouse=True)
def ready(primer: Primer, folder: Path) -> Primer:
    result = {"id": "x1", "ended_by": "exit", "exit_code": 0}
    primer.exec_lines = [{"id": "x1"}, {"result": result}]
    Path("here.txt").write_text("mine")
    Path("link").symlink_to("nowhere")
    Path("job.py").write_text("print(1)")
    return primer


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["-c", "x", "--fetch", "out/here.txt"], "--fetch out/here.txt: ./here.txt exists"),
        (["-c", "x", "--fetch", "link"], "--fetch link: ./link exists"),
        (["-c", "x", "--fetch", ".."], "--fetch ..: has no safe name here"),
        (["-c", "x", "--fetch", "a\x1b"], "--fetch a\\x1b: has no safe name here"),
        (["-c", "x", "--fetch", "a/o", "--fetch", "b/o"], "--fetch b/o: two of them would be ./o"),
        (["-c", "x", "--timeout", "0"], "--timeout: must be at least 100ms, not 0"),
        (["-c", "x", "--timeout", "1ms"], "--timeout: must be at least 100ms, not 1ms"),
        (["-c", "x", "job.py"], "-c CODE and job.py: one of them"),
        (["job.py", "-c", "x", "--", "a"], "-c CODE and job.py: one of them"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(
    cli: Cli, primer: Primer, argv: list[str], line: str
) -> None:
    result = cli("run", *argv)
    first, hint = [*result.err.splitlines(), ""][:2]
    assert (result.code, first) == (2, f"error: {line}")
    assert "-O" not in hint
    assert "--force" not in hint
    assert primer.requests == []
    assert Path("here.txt").read_text() == "mine"


def test_exec_refuses_a_limit_of_nothing_by_its_flag(cli: Cli) -> None:
    result = cli("workspace", "exec", WS, "--timeout", "0", "--", "x")
    assert (result.code, result.err) == (2, "error: --timeout: must be at least 100ms, not 0\n")


def test_arguments_of_code_come_after_two_dashes(cli: Cli, primer: Primer) -> None:
    assert cli("run", "-c", "x", "--", "job.py", "--", "b").code == 0
    assert primer.sent("POST", f"/v1/workspaces/{WS}/exec")[0].json["argv"] == [
        "python",
        "-c",
        "x",
        "job.py",
        "--",
        "b",
    ]


def test_a_directory_is_fetched_too(cli: Cli, primer: Primer) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("out/a")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"42"))
    answer = Answer(200, packed.getvalue(), {"Content-Type": "application/x-tar"})
    primer.on("GET", f"{FILES}/download", answer)
    result = cli("run", "-c", "x", "--fetch", "out")
    assert result.code == 0, result.err
    assert [path.read_bytes() for path in Path("out").rglob("a")] == [b"42"]


def test_a_file_that_is_not_there_gets_no_hint_at_what_is_gone(cli: Cli) -> None:
    result = cli("run", "-c", "x", "--fetch", "nothing.txt")
    assert result.code == 1
    assert f"error: {WS}:nothing.txt not found\n" in result.err
    assert "hint:" not in result.err
