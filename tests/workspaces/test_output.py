"""What is kept of a stream, checked against the whole of it; and text that is never cut."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from workspaces.exec_shapes import Lines
from workspaces.execution import OutputChunk
from workspaces.output import Decoder, Keeper
from workspaces.runs import LISTENER_BYTES, Listener

CHUNKS = st.lists(st.binary(max_size=50), max_size=30)


def feed(keeper: Keeper, chunks: list[bytes], offset: int = 0) -> None:
    for chunk in chunks:
        keeper.take(offset, chunk)
        offset += len(chunk)


def kept(keeper: Keeper) -> bytes:
    return keeper.unstored()[1] + keeper.tail()


@given(CHUNKS, st.integers(0, 200))
def test_head_and_tail_are_those_of_the_stream_and_the_gap_is_what_lies_between(
    chunks: list[bytes], limit: int
) -> None:
    whole, keeper = b"".join(chunks), Keeper(limit)
    feed(keeper, chunks)
    assert keeper.total == len(whole)
    if len(whole) <= limit:
        assert (kept(keeper), keeper.gap) == (whole, None)
    else:
        start, end = keeper.gap or (0, 0)
        assert kept(keeper) == whole[:start] + whole[end:]
        assert len(kept(keeper)) <= limit
        assert start == limit - limit // 4


@given(CHUNKS, st.integers(0, 200), st.data())
def test_storing_the_head_on_the_way_changes_nothing(chunks: list[bytes], limit: int, data: Any) -> None:
    keeper, plain, stored, offset = Keeper(limit), Keeper(limit), b"", 0
    feed(plain, chunks)
    for chunk in chunks:
        keeper.take(offset, chunk)
        offset += len(chunk)
        if data.draw(st.booleans()):
            at, part = keeper.unstored()
            assert at == len(stored)
            stored += part
            keeper.mark_stored(len(part))
    assert (stored + kept(keeper), keeper.gap) == (kept(plain), plain.gap)


@given(CHUNKS, CHUNKS, st.integers(1, 200))
def test_what_is_replayed_after_a_reconnect_counts_once(before: list[bytes], after: list[bytes], limit: int) -> None:
    once, twice = Keeper(limit), Keeper(limit)
    feed(once, [*before, *after])
    feed(twice, before)
    feed(twice, [b"".join([*before, *after])])
    assert (kept(once), once.gap, once.total) == (kept(twice), twice.gap, twice.total)


def test_output_that_was_lost_with_a_process_is_a_gap_and_never_closed_up() -> None:
    keeper = Keeper(1000, stored=10)
    keeper.take(50, b"x" * 5)
    assert (keeper.gap, keeper.total, kept(keeper)) == ((10, 50), 55, b"xxxxx")


@given(CHUNKS, st.integers(0, 200), st.integers(0, 1500))
def test_a_read_gives_kept_bytes_of_its_offset_or_of_what_is_behind_the_gap(
    chunks: Any, limit: int, offset: int
) -> None:
    whole, keeper = b"".join(chunks), Keeper(limit)
    feed(keeper, chunks)
    start, data = keeper.read(offset, 20)
    assert len(data) <= 20
    assert start >= offset
    assert data == whole[start : start + len(data)]


@given(st.text(max_size=200), st.lists(st.integers(1, 7), min_size=1, max_size=50))
def test_a_text_in_pieces_of_any_size_is_the_text(text: str, sizes: list[int]) -> None:
    data, decoder, parts, at = text.encode(), Decoder(), [], 0
    for size in sizes * 200:
        _, part = decoder.feed(data[at : at + size])
        assert part is not None
        parts.append(part)
        at += size
        if at >= len(data):
            break
    whole = data[: min(at, len(data))]
    assert "".join(parts).encode() + decoder.flush() == whole


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=20))
def test_lines_give_every_byte_once_and_in_place(chunks: list[bytes]) -> None:
    lines, raw, offset = Lines(), b"", 0
    for chunk in chunks:
        raw += lines.feed(OutputChunk("stdout", offset, chunk))
        offset += len(chunk)
    raw += lines.flush("stdout")
    found = b""
    for item in map(json.loads, raw.splitlines()):
        assert item["offset"] == len(found)
        found += base64.b64decode(item["data"]) if item["encoding"] == "base64" else item["data"].encode()
    assert found == b"".join(chunks)


def test_what_a_slow_reader_lost_is_named() -> None:
    lines = Lines()
    lines.feed(OutputChunk("stdout", 0, b"abc"))
    assert lines.feed(OutputChunk("stdout", 10, b"x")).splitlines()[0] == b'{"stream":"stdout","gap":[3,10]}'


async def test_a_reader_that_reads_gets_everything_and_one_that_does_not_loses_but_holds_up_only_once(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("workspaces.runs.STALL_S", 0.01)
    listener, chunk = Listener(), b"x" * (LISTENER_BYTES // 4)
    for number in range(40):
        await listener.offer(OutputChunk("stdout", number * len(chunk), chunk))
    listener.end()
    offsets = []
    while (found := await listener.next()) is not None:
        offsets.append(found.offset)
    assert offsets == [number * len(chunk) for number in range(4)]


async def test_a_full_queue_waits_for_its_reader() -> None:
    listener, chunk = Listener(), b"x" * LISTENER_BYTES
    await listener.offer(OutputChunk("stdout", 0, chunk))
    waiting = asyncio.ensure_future(listener.offer(OutputChunk("stdout", len(chunk), b"y")))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert (await listener.next()) is not None
    await waiting
    last = await listener.next()
    assert last is not None
    assert last.data == b"y"
