"""What answers at a base_url that is no model, a model that goes away, and what is known before a reply is whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from agents.events import Ended, Retrying, WaitsForPlace
from agents.llm.base import LLMConfig, LLMEvent, LLMRequest, LLMUnavailable, Metered, TextDelta, Waiting
from agents.llm.scripted import ScriptedLLM, parse_turns
from agents.llm.wire import BROKEN, UNANSWERED, WHERE
from agents.loop import AgentLoop, Settings
from agents.messages import Usage, UserMessage
from agents.tools import Toolbox
from tests.agents.bench import MemoryBench
from tests.agents.test_loop import RUN, no_pause, play
from tests.llm.conftest import Making, Model, asking, heard
from tests.llm.stub_http import Fails, How, Says

KINDS = ("anthropic", "openai")
LONG = Says("A long answer that is cut before it is whole. " * 4)
PAGE = b"<!doctype html><html><body>Welcome!</body></html>"
each_kind = pytest.mark.parametrize("kind", KINDS)


def loop_of(model: Model) -> AgentLoop:
    return AgentLoop(model.llm, Toolbox(MemoryBench()), Settings("stub-1"), pause=no_pause)


# -- a connection that breaks


@each_kind
@pytest.mark.parametrize("chunked", [True, False], ids=["seen by the framing", "a clean end"])
async def test_a_reply_that_is_cut_is_called_broken_by_every_kind(kind: str, chunked: bool, wired: Making) -> None:
    model = wired(kind, (LONG, How(cut=700, chunked=chunked)))
    told: list[LLMEvent] = []

    async def listen() -> None:
        async with aclosing(model.llm.stream(asking())) as events:
            async for event in events:
                told.append(event)

    with pytest.raises(LLMUnavailable) as caught:
        await listen()
    assert caught.value.detail == BROKEN
    assert any(isinstance(event, TextDelta) for event in told), "some of the reply had come"


@each_kind
async def test_a_connection_that_closes_without_an_answer_is_neither_unreachable_nor_half_a_reply(
    kind: str, wired: Making
) -> None:
    model = wired(kind)
    assert model.stub is not None
    model.stub.closes = True
    with pytest.raises(LLMUnavailable) as caught:
        await heard(model.llm, asking())
    assert caught.value.detail == UNANSWERED


# -- something else that answers


@each_kind
@pytest.mark.parametrize(
    ("how", "named"),
    [
        (How(raw=PAGE, media="text/html; charset=utf-8"), "text/html"), (How(raw=PAGE, media="TEXT/HTML"), "text/html"),
        (How(raw=PAGE, media="text/plain"), "text/plain"), (How(raw=PAGE, media=""), ""), (How(raw=b"", media=""), ""),
        (How(raw=b"", media="text/plain"), "text/plain"), (How(raw=b"", media="application/json"), "application/json"),
        (How(raw=b"{}", media="application/json"), "application/json"),
        (How(raw=b'{"status": "ok"}', media="application/json; charset=utf-8"), "application/json"),
        (How(raw=b"[1, 2]", media="application/json"), "application/json"),
        (How(raw=b"{not json", media="application/json"), "application/json"),
        (How(raw=b"[" * 100_000, media="application/json"), "application/json"),
        (How(raw=b'{"error": null, "items": []}', media="application/json"), "application/json"),
    ],
    ids=lambda value: repr((value.raw or b"")[:20]) if isinstance(value, How) else value,
)  # fmt: skip
async def test_what_is_not_this_api_is_asked_once_and_told_where_to_look(
    kind: str, how: How, named: str, wired: Making
) -> None:
    model = wired(kind, (Says("x"), how))
    events = await play(loop_of(model))
    end = events[-1]
    assert isinstance(end, Ended)
    assert (end.reason, end.code) == ("failed", "llm_config")
    assert end.message.startswith("The model's endpoint does not speak this API.")
    assert named in end.message
    assert end.hint.startswith(WHERE)
    assert not any(isinstance(event, Retrying) for event in events)
    assert model.stub is not None
    assert len(model.stub.asked) == 1


@each_kind
async def test_a_page_without_an_end_is_not_read(kind: str, wired: Making) -> None:
    model = wired(kind, (Says("x"), How(raw=PAGE, hang=len(PAGE), media="text/html")))
    with pytest.raises(LLMConfig, match="does not speak this API"):
        await heard(model.llm, asking())
    assert model.stub is not None
    assert await asyncio.to_thread(model.stub.dropped.wait, 10)


@each_kind
async def test_json_without_an_end_is_read_up_to_a_bound(
    kind: str, wired: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.llm.wire.MAX_ANSWER_BYTES", 100_000)
    many = How(raw=b"[" + b"1,\n" * 100_000, hang=300_001, media="application/json")
    model = wired(kind, (Says("x"), many))
    with pytest.raises(LLMUnavailable, match="more than any reply"):
        await heard(model.llm, asking())
    assert model.stub is not None
    async with asyncio.timeout(10):
        while model.stub.open:
            await asyncio.sleep(0.01)


@each_kind
async def test_a_refusal_with_status_200_is_read_as_what_it_says(kind: str, wired: Making) -> None:
    error = b'{"error": {"type": "overloaded_error", "message": "Too many."}}'
    with pytest.raises(LLMUnavailable, match=r"overloaded. It says: \"Too many.\""):
        await heard(wired(kind, (Says("x"), How(raw=error, media="application/json"))).llm, asking())


@each_kind
@pytest.mark.parametrize(
    ("media", "body"), [("text/html", PAGE), ("application/json", b'{"data": 3}'), ("application/json", b"<")]
)
async def test_a_list_of_models_that_is_none_says_where_to_look(
    kind: str, media: str, body: bytes, wired: Making
) -> None:
    model = wired(kind)
    assert model.stub is not None
    model.stub.listing = (media, body)
    with pytest.raises(LLMConfig, match="does not speak this API") as caught:
        await model.llm.models()
    assert caught.value.hint_text == WHERE


@each_kind
async def test_a_gateway_whose_page_comes_with_a_failure_may_pass(kind: str, wired: Making) -> None:
    model = wired(kind, Fails(502, headers=(("content-type", "text/html"),), raw=PAGE))
    with pytest.raises(LLMUnavailable):
        await heard(model.llm, asking())


# -- what is known before the end


async def test_what_a_broken_reply_had_used_is_counted_and_so_is_the_next_try(wired: Making) -> None:
    says = Says(LONG.text, usage=Usage(100, 7, 20, 3))
    model = wired("anthropic", (says, How(cut=700)), says)
    loop = loop_of(model)
    assert isinstance((await play(loop))[-1], Ended)
    first = loop.spent.usage.input_tokens - 100
    assert first == 100, "the endpoint reported it at the beginning of its reply"
    assert loop.spent.usage.cache_read_tokens == 40


async def test_what_is_left_when_a_run_is_closed_in_the_middle_of_a_reply_is_counted(wired: Making) -> None:
    model = wired("anthropic", (Says(LONG.text, usage=Usage(100, 7)), How(hang=700)))
    loop = loop_of(model)
    async with aclosing(loop.events([UserMessage("go")])) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                break
    assert loop.spent.usage.input_tokens == 100
    assert loop.spent.turns == 1


async def test_usage_that_comes_before_the_reply_is_not_counted_twice(wired: Making) -> None:
    for kind in KINDS:
        loop = loop_of(wired(kind, Says("Done.", usage=Usage(100, 7))))
        await play(loop)
        assert loop.spent.usage == Usage(100, 7), kind


@each_kind
async def test_who_waits_for_a_place_says_so_once_and_goes_on_when_there_is_one(
    kind: str, wired: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.llm.wire.WAIT_TOLD_S", 0.01)
    model = wired(kind, (LONG, How(hang=700)), Says("Done."), max_concurrency=1)
    assert model.stub is not None
    first = asyncio.create_task(heard(model.llm, asking()))
    assert await asyncio.to_thread(model.stub.hung.wait, 10)
    async with aclosing(model.llm.stream(asking())) as events:
        assert await anext(events) == Waiting(f"{kind}-{model.stub.port}", 1)
        first.cancel()
        rest = [event async for event in events]
    assert not any(isinstance(event, Waiting) for event in rest)
    assert "".join(event.text for event in rest if isinstance(event, TextDelta)) == "Done."
    assert not any(isinstance(event, Waiting) for event in await heard(model.llm, asking()))


async def test_who_leaves_the_line_takes_no_place_along(wired: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.llm.wire.WAIT_TOLD_S", 0.01)
    model = wired("openai", (LONG, How(hang=700)), Says("Done."), max_concurrency=1)
    assert model.stub is not None
    first = asyncio.create_task(heard(model.llm, asking()))
    assert await asyncio.to_thread(model.stub.hung.wait, 10)
    async with aclosing(model.llm.stream(asking())) as events:
        assert isinstance(await anext(events), Waiting)
    first.cancel()
    async with asyncio.timeout(10):
        assert any(isinstance(event, Metered) for event in await heard(model.llm, asking()))


class Busy(ScriptedLLM):
    """Each question waits for a place first."""

    async def stream(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
        yield Waiting("busy", 1)
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield event


async def test_a_run_tells_of_its_first_wait_only() -> None:
    busy = Busy(parse_turns([{"calls": [RUN]}, {"calls": [RUN]}, {"text": "Done."}]))
    events = await play(AgentLoop(busy, Toolbox(MemoryBench()), Settings("m")))
    assert [event for event in events if isinstance(event, WaitsForPlace)] == [WaitsForPlace("busy", 1)]
    assert events[-1] == Ended("completed", "Done.")
