"""The two kinds that speak HTTP, against endpoints that break, lie and listen."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from agents.llm.base import ContextTooLong, LLMConfig, LLMUnavailable, Reply
from agents.llm.gate import one_of
from agents.messages import UserMessage
from tests.llm.conftest import STUBS, Making, asking, heard, reply_of
from tests.llm.stub_http import Fails, How, Says

KINDS = ("anthropic", "openai")
EXEC = "workspace__exec"
WHOLE = Says("ü🌍", calls=((EXEC, '{"command": "ä"}'),))
each_kind = pytest.mark.parametrize("kind", KINDS)


def body_bytes(kind: str, says: Says) -> int:
    return len(STUBS[kind]().sse(says, 0))


@each_kind
async def test_an_answer_split_at_any_byte_is_the_same(kind: str, wired: Making) -> None:
    model = wired(kind, WHOLE, max_concurrency=8)
    assert model.stub is not None
    length, stride = body_bytes(kind, WHOLE), 40
    # Each answer is split at every 40th byte, beginning with another one: together at all of them.
    splits = [range(first, length, stride) for first in range(1, stride + 1)]
    assert {offset for split in splits for offset in split} == set(range(1, length))
    model.stub.steps = [(WHOLE, How(split=split)) for split in splits]
    replies = await asyncio.gather(*(heard(model.llm, asking()) for _ in splits))
    for events in replies:
        reply = reply_of(events)
        assert (reply.message.text, reply.stop_reason) == ("ü🌍", "tool_use")
        assert [call.arguments for call in reply.message.calls] == [{"command": "ä"}]


@pytest.mark.slow
@each_kind
async def test_an_answer_cut_at_any_byte_is_broken_or_whole_and_never_half(kind: str, wired: Making) -> None:
    model = wired(kind, WHOLE, max_concurrency=8)
    assert model.stub is not None
    length = body_bytes(kind, WHOLE)
    # In turn an end that the framing shows to be too early, and one that looks clean.
    model.stub.steps = [(WHOLE, How(cut=offset, chunked=offset % 2 == 0)) for offset in range(length)]
    whole = 0
    for events in await asyncio.gather(*(_heard_or_failed(model.llm) for _ in range(length))):
        if isinstance(events, LLMUnavailable):
            continue
        reply = reply_of(events)
        assert (reply.message.text, reply.stop_reason) == ("ü🌍", "tool_use")
        assert [(call.arguments, call.problem) for call in reply.message.calls] == [({"command": "ä"}, "")]
        whole += 1
    # What may be missing is only what says nothing: the last line break, or the usage and the end mark behind the reason.
    assert whole <= (1 if kind == "anthropic" else 500)


async def _heard_or_failed(llm: Any) -> Any:
    try:
        return await heard(llm, asking())
    except LLMUnavailable as exc:
        return exc


@each_kind
@pytest.mark.parametrize(
    "raw",
    [
        b"<html>hello</html>", b"data: {not json}\n\n", b"\xff\xfe\x00", b"", b"data: []\n\n", b"data: 7\n\n",
        b'event: message_start\ndata: {"type": "message_start"}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":7,"delta":{"type":"text_delta","text":"x"}}\n\n',
        b'data: {"choices": [{"delta": "text"}]}\n\n', b'data: {"choices": 3}\n\n',
        b'data: {"choices": [{"delta": {"content": 5}, "finish_reason": "stop"}]}\n\n',
        b'event: x\ndata: ' + b"[" * 100_000 + b"\n\n", b"a" * 5_000_000, b"data: null\n\n",
    ],
    ids=lambda raw: repr(raw[:24]),
)  # fmt: skip
async def test_nonsense_is_unavailable_and_no_traceback(kind: str, raw: bytes, wired: Making) -> None:
    model = wired(kind, (Says("x"), How(raw=raw, chunked=False)))
    with pytest.raises(LLMUnavailable):
        await heard(model.llm, asking())


@each_kind
async def test_an_endless_answer_ends(kind: str, wired: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.llm.wire.MAX_ANSWER_BYTES", 100_000)
    model = wired(kind, (Says("x"), How(raw=b": comment\n\n" * 20_000)))
    with pytest.raises(LLMUnavailable, match="more than any reply"):
        await heard(model.llm, asking())


@each_kind
async def test_a_compressed_answer_is_refused_since_it_was_not_asked_for(kind: str, wired: Making) -> None:
    model = wired(kind, Fails(500, headers=(("content-encoding", "gzip"),)))
    with pytest.raises(LLMUnavailable, match="not this kind of API"):
        await heard(model.llm, asking())
    assert model.stub is not None
    assert model.stub.headers[0]["accept-encoding"] == "identity"


@each_kind
async def test_silence_ends_by_the_providers_timeout(kind: str, wired: Making) -> None:
    model = wired(kind, (WHOLE, How(hang=40)), timeout_s=0.2)
    with pytest.raises(LLMUnavailable, match=r"did not answer within 0\.2 s") as caught:
        await heard(model.llm, asking())
    assert "raise timeout_s" in caught.value.hint_text


async def test_a_whole_reply_counts_also_where_the_connection_stays_open(wired: Making) -> None:
    model = wired("openai", WHOLE, timeout_s=0.5)
    assert model.stub is not None
    end = model.stub.sse(WHOLE, 0).index(b"data: [DONE]")
    model.stub.steps = [(WHOLE, How(hang=end))]
    reply = (await heard(model.llm, asking()))[-1]
    assert isinstance(reply, Reply)
    assert reply.message.text == WHOLE.text
    assert len(model.stub.asked) == 1


@each_kind
async def test_cancelling_a_silent_question_drops_the_connection(kind: str, wired: Making) -> None:
    model = wired(kind, (WHOLE, How(hang=40)))
    assert model.stub is not None
    task = asyncio.create_task(heard(model.llm, asking()))
    assert await asyncio.to_thread(model.stub.hung.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(model.stub.dropped.wait, 5)


@each_kind
async def test_nobody_there_is_unavailable(kind: str, wired: Making) -> None:
    model = wired(kind)
    assert model.stub is not None
    model.stub.stop()
    with pytest.raises(LLMUnavailable, match="cannot be reached") as caught:
        await heard(model.llm, asking())
    assert "base_url" in caught.value.hint_text


@each_kind
async def test_a_redirect_is_not_followed(kind: str, wired: Making) -> None:
    target, model = wired(kind), wired(kind)
    assert model.stub is not None
    assert target.stub is not None
    model.stub.redirect_to = f"{target.stub.url}/v1/messages"
    with pytest.raises(LLMConfig, match="redirects"):
        await heard(model.llm, asking())
    assert not target.stub.asked


@each_kind
async def test_a_long_conversation_is_told_apart(kind: str, wired: Making) -> None:
    model = wired(kind)
    assert model.stub is not None
    model.stub.max_tokens_of_context = 100
    with pytest.raises(ContextTooLong):
        await heard(model.llm, asking(UserMessage("x" * 1000)))


@each_kind
async def test_the_wait_that_was_asked_for_is_kept(kind: str, wired: Making) -> None:
    model = wired(kind, Fails(429, "rate_limit_error", "slow down", (("retry-after", "7"),)))
    with pytest.raises(LLMUnavailable) as caught:
        await heard(model.llm, asking())
    assert caught.value.retry_after_s == 7


@each_kind
async def test_at_most_so_many_questions_at_once(kind: str, wired: Making) -> None:
    model = wired(kind, (Says("slow " * 20), How(split=[100])), max_concurrency=2)
    await asyncio.gather(*(heard(model.llm, asking()) for _ in range(8)))
    assert model.stub is not None
    assert model.stub.most_open <= 2


async def test_two_drivers_of_one_provider_share_its_places() -> None:
    async with one_of(1, "shared"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), one_of(1, "shared"):
                pass
        async with asyncio.timeout(1), one_of(1, "another"):
            pass
    async with asyncio.timeout(1), one_of(1, "shared"):
        pass


async def test_the_end_of_a_generator_closes_the_sdks_stream(wired: Making) -> None:
    model = wired("anthropic", (WHOLE, How(hang=900)))
    assert model.stub is not None
    async with aclosing(model.llm.stream(asking())) as events:
        await anext(events)
    assert await asyncio.to_thread(model.stub.dropped.wait, 5)
