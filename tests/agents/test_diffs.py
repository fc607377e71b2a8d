"""What a write replaced: a diff that leads from one text to the other, of bounded size, and none where there is nothing to compare."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agents.messages import ToolCall
from agents.redact import MASK, Redactor
from agents.tools import Toolbox
from agents.tools.base import BenchFailed, ToolOutcome
from tests.agents.bench import MemoryBench
from tests.agents.test_tools import outcome
from workspaces.diff import COMPARED, CUT, DIFF_BYTES, unified
from workspaces.execution import FileRange

LINES = st.lists(st.sampled_from(["a", "b", "c", "", "+", "-x", "@@"]), max_size=30)


def applied(before: list[str], diff: str) -> list[str]:
    """What a diff makes of a text; fails where a line that it names does not stand there."""
    found: list[str] = []
    at = 0
    for line in diff.split("\n") if diff else []:
        if line.startswith("@@ -") and line.endswith(" @@"):
            start, count = (int(number) for number in line.split()[1][1:].split(","))
            start -= bool(count)
            found += before[at:start]
            at = start
        elif line[0] == "+":
            found.append(line[1:])
        else:
            assert before[at] == line[1:]
            found += [before[at]] if line[0] == " " else []
            at += 1
    return found + before[at:]


@given(LINES, LINES)
def test_a_diff_leads_from_one_text_to_the_other(before: list[str], after: list[str]) -> None:
    one, other = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
    assert applied(before, unified(one, other)) == after


def test_only_the_surroundings_of_a_change_are_in_it() -> None:
    before = [f"line {number}" for number in range(1000)]
    after = [*before[:500], "another", *before[501:]]
    diff = unified("\n".join(before), "\n".join(after)).split("\n")
    assert diff[0] == "@@ -498,7 +498,7 @@"
    assert [line for line in diff if line[0] in "+-"] == ["-line 500", "+another"]
    assert len(diff) == 9


def test_texts_that_have_nothing_in_common_are_replaced_whole_within_the_bound() -> None:
    side = int(COMPARED**0.5) + 1
    diff = unified("\n".join(["a"] * side + ["same"] + ["b"] * side), "\n".join(["c"] * side + ["same"] + ["d"] * side))
    assert sum(line == "-same" for line in diff.split("\n")) == 1, "what is too much to compare is not compared"
    huge = unified("", "\n".join("x" * 50 for _ in range(10_000)))
    assert huge.endswith(CUT)
    assert len(huge.encode()) <= DIFF_BYTES + len(CUT) + 1


async def test_a_write_carries_what_it_changed_and_a_new_file_carries_nothing() -> None:
    bench = MemoryBench()
    first = await outcome(bench, "write", path="a.txt", content="one\ntwo\n")
    second = await outcome(bench, "write", path="a.txt", content="one\n2\n")
    third = await outcome(bench, "write", path="a.txt", content="one\n2\n")
    assert first.to_dict()["files"] == [{"path": "a.txt", "change": "created"}]
    assert second.files[0].diff == "@@ -1,2 +1,2 @@\n one\n-two\n+2"
    assert third.files[0].diff == ""


async def test_a_secret_of_several_lines_is_hidden_in_a_diff_as_everywhere() -> None:
    key = "-----BEGIN KEY-----\nabcdefghij\nklmnopqrst\n-----END KEY-----"
    bench = MemoryBench(files={"key.pem": f"old\n{key}\nend\n".encode()})
    toolbox = Toolbox(bench, hide=Redactor([key]).hide)
    call = ToolCall("c1", "workspace__write", {"path": "key.pem", "content": "old\nnone\nend\n"})
    found = [event async for event in toolbox.run(call)][-1]
    assert isinstance(found, ToolOutcome)
    assert found.files[0].diff == f"@@ -1,3 +1,3 @@\n old\n-{MASK}\n+none\n end"
    assert "abcdefghij" not in str(found)


async def test_what_is_no_text_or_too_large_is_replaced_without_a_diff() -> None:
    bench = MemoryBench(files={"picture": b"\x89PNG\xff", "large": b"x" * (DIFF_BYTES + 1)})
    for path in ("picture", "large"):
        found = await outcome(bench, "write", path=path, content="text")
        assert (found.ok, found.files[0].diff) == (True, None)
        assert bench.files[path] == b"text"


async def test_a_sandbox_that_fails_while_the_former_text_is_read_ends_the_write() -> None:
    class Broken(MemoryBench):
        async def read(self, path: str, *, offset: int, limit: int) -> FileRange:
            raise BenchFailed("The sandbox is gone.", cause_code="workspace_lost")

    bench = Broken(files={"a": b"old"})
    found = await outcome(bench, "write", path="a", content="new")
    assert isinstance(found, ToolOutcome)
    assert found.fatal is not None
    assert bench.files == {"a": b"old"}
