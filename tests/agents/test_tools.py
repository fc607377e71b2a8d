"""The workspace's tools: what a model sees of a result, and that hostile input stays data."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.messages import ToolCall
from agents.tools import Toolbox
from agents.tools.base import RESULT_BYTES, ToolEvent, ToolOutcome, ToolOutput
from agents.tools.render import LIVE_BYTES, Kept, LiveText, cut_head, cut_tail
from tests.agents.bench import MemoryBench, exited, printed
from workspaces.execution import Evidence, ExecOutcome, OutputChunk, Survivor
from workspaces.runtime.protocol import MAX_SURVIVORS


async def use(bench: MemoryBench, name: str, **arguments: Any) -> list[ToolEvent]:
    toolbox = Toolbox(bench)
    async with aclosing(toolbox.run(ToolCall("c1", f"workspace__{name}", arguments))) as events:
        return [event async for event in events]


async def outcome(bench: MemoryBench, name: str, **arguments: Any) -> ToolOutcome:
    last = (await use(bench, name, **arguments))[-1]
    assert isinstance(last, ToolOutcome)
    return last


async def test_a_long_output_is_head_and_tail_with_exact_counts_and_the_execs_id() -> None:
    data = b"".join(b"line %06d\n" % number for number in range(200_000))
    found = await outcome(MemoryBench(lambda command: printed(data)), "exec", command="seq")
    assert len(found.text.encode()) < RESULT_BYTES + 500
    assert f"stdout: {len(data)} bytes\nline 000000\n" in found.text
    assert "line 199999\n" in found.text
    assert f"of {len(data)} bytes left out here: bytes " in found.text
    assert "of stdout; read or search them with exec_id exec-1]" in found.text
    head, _, rest = found.text.partition("\n[")
    left_out = int(rest.split(" ")[0])
    shown_head = head.partition(" bytes\n")[2]
    shown_tail = rest.partition("]\n")[2].rpartition("\nstderr: ")[0]
    assert len(shown_head.encode()) + left_out + len(shown_tail.encode()) + 1 == len(data)
    assert (found.truncated, found.bytes, found.exec_id) == (True, len(data), "exec-1")


async def test_characters_split_over_chunks_arrive_whole_live_and_in_the_result() -> None:
    data = ("a" + "€" * 3000).encode()
    steps = [OutputChunk("stdout", at, data[at : at + 1000]) for at in range(0, len(data), 1000)]
    events = await use(MemoryBench(lambda command: [*steps, exited(out=len(data))]), "exec", command="x")
    live = [event for event in events if isinstance(event, ToolOutput)]
    assert "".join(event.text for event in live) == data.decode()
    position = 0
    for event in live:
        assert event.offset == position
        position += len(event.text.encode())
    last = events[-1]
    assert isinstance(last, ToolOutcome)
    assert "\ufffd" not in last.text


async def test_a_cut_between_head_and_tail_never_splits_a_character() -> None:
    data = ("€" * 100_000).encode()
    found = await outcome(MemoryBench(lambda command: printed(data)), "exec", command="x")
    assert "\ufffd" not in found.text


async def test_bytes_that_are_no_text_are_marked_and_counted() -> None:
    found = await outcome(MemoryBench(lambda command: printed(b"\xff\xfe\x00ok\n")), "exec", command="x")
    assert "stdout: 6 bytes" in found.text
    assert "\ufffd\ufffd" in found.text


async def test_live_text_ends_at_its_limit_with_one_gap() -> None:
    data = b"x" * (LIVE_BYTES + 5000)
    steps = [OutputChunk("stdout", at, data[at : at + 64_000]) for at in range(0, len(data), 64_000)]
    events = await use(MemoryBench(lambda command: [*steps, exited(out=len(data))]), "exec", command="x")
    live = [event for event in events if isinstance(event, ToolOutput)]
    assert sum(len(event.text) for event in live) == LIVE_BYTES
    assert [event.gap for event in live if event.gap] == [(LIVE_BYTES, len(data))]


async def test_stderr_that_is_short_leaves_its_share_to_stdout() -> None:
    found = await outcome(MemoryBench(lambda command: printed(b"o" * 15_000, 1, b"error\n")), "exec", command="x")
    assert not found.truncated
    assert "o" * 15_000 in found.text
    assert found.text.endswith("stderr: 6 bytes\nerror")


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (ExecOutcome("timeout", None, 9, 0, 0, 1.0, evidence=Evidence(limit=60.0)), "ended by timeout after 60 s"),
        (ExecOutcome("oom", 137, None, 0, 0, 1.0, evidence=Evidence(limit=1024.0)), "ended by oom: limit 1024 bytes"),
        (ExecOutcome("pids", 1, None, 0, 0, 1.0, evidence=Evidence(limit=256.0)), "ended by pids: limit 256 processes"),
        (ExecOutcome("disk", None, 25, 0, 0, 1.0), "ended by disk"),
        (ExecOutcome("output_cap", None, 9, 0, 0, 1.0), "ended by output_cap"),
        (ExecOutcome("signal", None, 11, 0, 0, 1.0), "signal 11"),
        (ExecOutcome("cancelled", None, 9, 0, 0, 1.0), "cancelled"),
        (ExecOutcome("lost", None, None, 0, 0, 1.0), "lost: "),
        (ExecOutcome("exit", 7, None, 0, 0, 1.0), "exit 7"),
    ],
)
async def test_every_verdict_has_its_words(ended: ExecOutcome, words: str) -> None:
    found = await outcome(MemoryBench(lambda command: [ended]), "exec", command="x")
    assert found.text.startswith(words)
    assert found.ended_by == ended.ended_by
    assert found.ok == (ended.ended_by not in ("lost", "cancelled"))


async def test_a_stream_that_ends_without_a_verdict_is_lost_and_no_success() -> None:
    found = await outcome(MemoryBench(lambda command: [OutputChunk("stdout", 0, b"all fine")]), "exec", command="x")
    assert (found.ok, found.ended_by, found.exit_code) == (False, "lost", None)
    assert "all fine" in found.text


async def test_processes_left_behind_are_named() -> None:
    ended = ExecOutcome("exit", 0, None, 0, 0, 1.0, survivors=(Survivor(41, "sleep 600"),))
    found = await outcome(MemoryBench(lambda command: [ended]), "exec", command="x")
    assert found.text.endswith("1 process still runs: 41 sleep 600")


async def test_a_list_of_processes_left_behind_that_was_cut_says_so() -> None:
    left = tuple(Survivor(pid, "sleep 600") for pid in range(1, MAX_SURVIVORS + 1))
    ended = ExecOutcome("exit", 0, None, 0, 0, 1.0, survivors=left)
    found = await outcome(MemoryBench(lambda command: [ended]), "exec", command="x")
    assert "\n64 or more processes still run: 1 sleep 600, " in found.text


async def test_exec_passes_what_it_was_given() -> None:
    bench = MemoryBench()
    await outcome(bench, "exec", command="cat", cwd="sub", stdin="hi", timeout_s=5)
    (command,) = bench.commands
    assert (command.argv, command.cwd, command.stdin, command.timeout_s) == (("sh", "-c", "cat"), "sub", b"hi", 5.0)


async def test_a_cancelled_exec_ends_its_program() -> None:
    bench = MemoryBench(lambda command: [asyncio.Event()])
    task = asyncio.create_task(use(bench, "exec", command="sleep 600"))
    while not bench.commands:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.killed == ["exec-1"]


async def test_secrets_are_hidden_from_the_model_too() -> None:
    toolbox = Toolbox(
        MemoryBench(lambda command: printed(b"key is hunter2\n")), hide=lambda text: text.replace("hunter2", "[secret]")
    )
    events = [event async for event in toolbox.run(ToolCall("c", "workspace__exec", {"command": "env"}))]
    last = events[-1]
    assert isinstance(last, ToolOutcome)
    assert "hunter2" not in last.text


async def test_write_says_whether_the_file_is_new() -> None:
    bench = MemoryBench()
    first = await outcome(bench, "write", path="a.txt", content="é")
    second = await outcome(bench, "write", path="a.txt", content="x")
    assert [change.change for change in (*first.files, *second.files)] == ["created", "modified"]
    assert first.text == "Wrote 2 bytes to a.txt (created)."


async def test_read_goes_on_where_it_ended_between_characters() -> None:
    bench = MemoryBench(files={"a": "€€€€".encode()})
    first = await outcome(bench, "read", path="a", limit=7)
    assert first.text == "€€\n[bytes 0 to 6 of 12; go on with offset 6]"
    assert first.truncated
    rest = await outcome(bench, "read", path="a", offset=6)
    assert rest.text == "€€"
    assert not rest.truncated


async def test_read_of_bytes_that_are_no_text_is_an_error_result() -> None:
    found = await outcome(MemoryBench(files={"a": b"\x89PNG\xff"}), "read", path="a")
    assert not found.ok
    assert "not UTF-8 text (5 bytes)" in found.text


async def test_read_of_a_missing_file_is_an_error_result() -> None:
    found = await outcome(MemoryBench(), "read", path="nope")
    assert (found.ok, found.text) == (False, "There is no file nope.")


@pytest.mark.parametrize(
    ("arguments", "content", "words"),
    [
        ({"old": "x", "new": "y"}, b"abc", "does not stand in"),
        ({"old": "a", "new": "y"}, b"aba", "stands 2 times"),
        ({"old": "a", "new": "y"}, b"\xff", "not UTF-8"),
        ({"old": "a", "new": "y"}, b"a" * (1 << 20) + b"a", "at most 1048576"),
    ],
)
async def test_an_edit_that_is_not_clear_changes_nothing(arguments: Any, content: bytes, words: str) -> None:
    bench = MemoryBench(files={"f": content})
    found = await outcome(bench, "edit", path="f", **arguments)
    assert not found.ok
    assert words in found.text
    assert bench.files == {"f": content}


async def test_an_edit_replaces_once_or_everywhere() -> None:
    bench = MemoryBench(files={"f": b"one two two"})
    assert (await outcome(bench, "edit", path="f", old="one", new="1")).ok
    assert (await outcome(bench, "edit", path="f", old="two", new="2", replace_all=True)).text == "Replaced 2 in f."
    assert bench.files == {"f": b"1 2 2"}


async def test_ls_keeps_one_entry_on_one_line() -> None:
    found = await outcome(MemoryBench(files={"a\nfile 99999 fake": b"x"}), "ls")
    assert found.text.count("\n") == 0
    assert "\\nfile" in found.text


def search(bench: MemoryBench, folder: Path) -> str:
    """Runs the program that a search would run in the sandbox, here in a folder of the test."""
    argv = [sys.executable, *bench.commands[-1].argv[1:]]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=20, check=True).stdout


async def test_glob_and_grep_treat_hostile_names_and_patterns_as_data(tmp_path: Path) -> None:
    names = ["'; touch pwn #", "a.py; touch pwn", "$(touch pwn)", "x.py"]
    for name in names:
        (tmp_path / name).write_text("needle here\nother\n")
    (tmp_path / "bin").write_bytes(b"\0needle")
    bench = MemoryBench()
    await outcome(bench, "glob", pattern="*")
    assert search(bench, tmp_path).splitlines() == sorted([*names, "bin"])
    await outcome(bench, "glob", pattern="'; open('pwn','w'); #")
    assert search(bench, tmp_path) == ""
    await outcome(bench, "grep", pattern="ne+dle", glob="*.py")
    assert search(bench, tmp_path) == "x.py:1:needle here\n"
    await outcome(bench, "grep", pattern="needle", path="x.py")
    assert search(bench, tmp_path) == "x.py:1:needle here\n"
    assert not (tmp_path / "pwn").exists()


async def test_glob_walks_below_a_directory_and_marks_directories(tmp_path: Path) -> None:
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "sub" / "deep" / "a.py").touch()
    bench = MemoryBench()
    await outcome(bench, "glob", pattern="**/*", path="sub")
    assert search(bench, tmp_path).splitlines() == ["sub/deep/", "sub/deep/a.py"]


async def test_grep_without_a_match_says_so() -> None:
    assert (await outcome(MemoryBench(), "grep", pattern="x")).text == "No match."


@settings(deadline=None)  # a busy machine is not a failure
@given(st.text(), st.integers(0, 50))
def test_cuts_never_split_a_character(text: str, limit: int) -> None:
    data = text.encode("utf-8", "surrogatepass") if text.isprintable() else text.encode("utf-8", "replace")
    for part in (cut_head(data, limit), cut_tail(data, limit)):
        assert len(part) <= limit
        assert part.decode("utf-8") in data.decode("utf-8")


@settings(deadline=None)  # a busy machine is not a failure
@given(st.lists(st.binary(max_size=300), max_size=30), st.integers(8, 64))
def test_kept_output_is_the_whole_or_its_ends_with_a_true_count(chunks: list[bytes], budget: int) -> None:
    kept, data = Kept(limit=64), b"".join(chunks)
    for chunk in chunks:
        kept.add(chunk)
    text, cut = kept.show(budget, len(data), "stdout", "exec-1")
    assert cut == (len(data) > budget)
    if not cut:
        assert text == data.decode("utf-8", "replace")
    assert len(kept.head) + len(kept.tail) <= 64 + 2 * 64 + 300


@settings(deadline=None)  # a busy machine is not a failure
@given(st.text(max_size=200), st.lists(st.integers(1, 7), min_size=1, max_size=50))
def test_decoding_piece_by_piece_is_decoding_the_whole(text: str, sizes: list[int]) -> None:
    data, at, found = text.encode("utf-8", "replace"), 0, ""
    live = LiveText()
    for size in sizes * (len(data) // len(sizes) + 1):
        offset, part = live.feed(OutputChunk("stdout", at, data[at : at + size]))
        assert not part or offset == len(found.encode())
        found += part
        at = min(at + size, len(data))
    assert found + live.finish()[1] == data.decode("utf-8")


# What the middle of a long output still tells, and the tools for it


def noisy(count: int, *marks: tuple[int, str]) -> bytes:
    lines = dict(marks)
    return "".join(f"{lines.get(number, f'line {number} is fine ')}\n" for number in range(count)).encode()


async def test_lines_that_look_like_errors_are_shown_from_the_middle_with_their_offsets() -> None:
    data = noisy(20_000, (9_000, "E   AssertionError: 1 != 2"), (9_500, "Permission denied: /x"))
    found = await outcome(MemoryBench(lambda command: printed(data)), "exec", command="pytest")
    for mark in (b"E   AssertionError: 1 != 2", b"Permission denied: /x"):
        assert f"{data.index(mark)}: {mark.decode()}" in found.text
    assert len(found.text.encode()) <= RESULT_BYTES + 700


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(["fine", "error: é€🌍", "x" * 300, "", "a failed test", "\ufffd"]), max_size=60),
    st.integers(1, 40),
)
def test_error_lines_never_break_the_budget_whatever_the_pieces(lines: list[str], size: int) -> None:
    data = "\n".join(lines).encode()
    kept = Kept(limit=400)
    for start in range(0, len(data), size):
        kept.add(data[start : start + size])
    text, cut = kept.show(400, len(data), "stdout", "exec-1")
    assert len(text.encode()) <= 400 + 400
    assert cut or text.encode() == data
    for offset, line in [*kept.lines.first, *kept.lines.last]:
        assert data[offset : offset + len(line)] == line


def test_a_flood_of_errors_costs_the_server_no_more_than_its_bound() -> None:
    kept = Kept()
    for _ in range(400):
        kept.add(b"error: all is lost\n" * 4000)
    assert kept.lines.count <= 1000 + 4000
    assert len(kept.lines.first) + len(kept.lines.last) <= 20


async def test_kept_output_is_read_in_parts_and_the_gap_is_named() -> None:
    bench = MemoryBench(outputs={"exec-1": (b"h" * 100, (100, 900), b"t" * 100)})
    first = await outcome(bench, "output_read", exec_id="exec-1")
    assert first.text == "h" * 100 + "\n[bytes 0 to 100 of 1000 of stdout; go on with offset 100]"
    second = await outcome(bench, "output_read", exec_id="exec-1", offset=100)
    assert second.text == "[bytes 100 to 900 were not kept]\n" + "t" * 100 + "\n[bytes 900 to 1000 of 1000 of stdout]"
    third = await outcome(bench, "output_read", exec_id="exec-1", offset=1000, stream="stderr")
    assert third.text == "[stderr has 1000 bytes; there is nothing at or behind 1000]"


async def test_kept_output_is_cut_between_characters() -> None:
    bench = MemoryBench(outputs={"exec-1": ("é€🌍".encode() * 10, None, b"")})
    found = await outcome(bench, "output_read", exec_id="exec-1", limit=7)
    assert found.text.startswith("é€\n[bytes 0 to 5 of 90")


async def test_kept_output_is_searched_over_pages_and_the_gap_is_named() -> None:
    head = noisy(40_000, (3, "needle one"), (30_000, "Needle TWO 🌍"))
    tail = b"half a line\nneedle three\n"
    gap = (len(head), len(head) + 5000)
    bench = MemoryBench(outputs={"exec-1": (head, gap, tail)})
    found = await outcome(bench, "output_grep", exec_id="exec-1", text="needle", ignore_case=True)
    assert found.text.splitlines() == [
        f"{head.index(b'needle one')}: needle one",
        f"{head.index(b'Needle TWO')}: Needle TWO 🌍",
        f"{gap[1] + 12}: needle three",
        f"[bytes {gap[0]} to {gap[1]} were not kept]",
    ]
    assert (await outcome(bench, "output_grep", exec_id="exec-1", text="needle one$")).text.startswith(
        "No line of stdout"
    )


async def test_a_search_with_many_matches_stays_in_the_budget_and_counts_them() -> None:
    bench = MemoryBench(outputs={"exec-1": (b"error " + b"x" * 500 + b"\n", None, b"")})
    bench.outputs["exec-1"] = (bench.outputs["exec-1"][0] * 2000, None, b"")
    found = await outcome(bench, "output_grep", exec_id="exec-1", text="error")
    assert len(found.text.encode()) <= RESULT_BYTES
    shown = found.text.count("error")
    assert f"[{2000 - shown} more]" in found.text


async def test_a_line_without_end_is_searched_too() -> None:
    bench = MemoryBench(outputs={"exec-1": (b"x" * 700_000 + b"needle" + b"y" * 100_000, None, b"")})
    found = await outcome(bench, "output_grep", exec_id="exec-1", text="needle")
    assert "needle" in found.text
    assert len(found.text) < 1000


async def test_output_of_a_command_that_did_not_run_here_is_not_found() -> None:
    for name, more in (("output_read", {}), ("output_grep", {"text": "x"})):
        found = await outcome(MemoryBench(), name, exec_id="exec-of-somebody-else", **more)
        assert not found.ok
        assert "ran in this session" in found.text


async def test_a_stream_that_does_not_exist_is_refused() -> None:
    found = await outcome(MemoryBench(), "output_read", exec_id="exec-1", stream="stdin")
    assert "must be one of stdout, stderr" in found.text
