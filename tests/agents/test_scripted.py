"""The scripted model: the code runner that needs no key, and scripts of turns."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from agents.budget import Limits
from agents.events import Ended
from agents.llm import make_llm
from agents.llm.base import LLM, LLMError, LLMEvent, LLMRequest, Reply, TextDelta
from agents.llm.scripted import HELP, BadScript, parse_turns, report, split_result
from agents.llm.snippet import snippet_of
from agents.loop import AgentLoop, Settings
from agents.messages import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from agents.tools import Toolbox
from tests.agents.bench import MemoryBench, printed

RECIPE = """\
import socket, os
print('RESULT', 6 * 7)
open('/workspace/out.txt', 'w').write(str(6 * 7))
"""


def request(*messages: Message, attempt: int = 1) -> LLMRequest:
    return LLMRequest("m", "", messages, attempt=attempt)


async def read(llm: LLM, *messages: Message, attempt: int = 1) -> list[LLMEvent]:
    async with aclosing(llm.stream(request(*messages, attempt=attempt))) as stream:
        return [event async for event in stream]


async def answer(text: str, bench: MemoryBench) -> Ended:
    loop = AgentLoop(make_llm("scripted", {"kind": "scripted"}, {}), Toolbox(bench), Settings("m"), Limits())
    async with aclosing(loop.events([UserMessage(text)])) as events:
        last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    return last


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Run this code: print(6 * 7)", "print(6 * 7)\n"),
        ("run this code:print(1)", "print(1)\n"),
        ("Please run the following Python code:\nimport os\nprint(os.getpid())", "import os\nprint(os.getpid())\n"),
        (f"Run this code: {RECIPE}", RECIPE),
        ("Run this code:\n    for i in range(2):\n        print(i)\n", "for i in range(2):\n    print(i)\n"),
        ("Try this\n```python\nprint('a')\nprint('b')\n```\nthanks", "print('a')\nprint('b')\n"),
        ("~~~\nprint(1)\n~~~", "print(1)\n"),
        ("```\nprint('unclosed')", "print('unclosed')\n"),
        ("````md\n```\nprint(1)\n```\n````", "```\nprint(1)\n```\n"),
        ("print(6*7)", "print(6*7)\n"),
        ("x = 3\nprint(x)", "x = 3\nprint(x)\n"),
        ("import os; os.abort()", "import os; os.abort()\n"),
        ("6 * 7", "6 * 7\n"),
        ("Run this code: print('```')", "print('```')\n"),
        ("Run this code: print('a: b')", "print('a: b')\n"),
        ("def broken(:\n  pass", "def broken(:\n  pass\n"),
        ("Hello, who are you?", ""),
        ("Run this code:   \n", ""),
        ("", ""),
    ],
)
def test_the_snippet_is_taken_out_of_the_instructions(text: str, code: str) -> None:
    assert snippet_of(text) == code


def test_a_huge_hostile_text_is_searched_in_no_time() -> None:
    # Nested brackets end parsers, long runs end backtracking: neither is used on them.
    for text in ("(" * 200_000, "a" * 200_000 + ":", "run" + " x" * 100_000, "=" * 200_000, " " * 200_000 + "x"):
        assert isinstance(snippet_of(text), str)


async def test_the_first_example_of_the_recipe_answers_42() -> None:
    bench = MemoryBench(lambda command: printed(b"42\n"))
    end = await answer("Run this code: print(6 * 7)", bench)
    assert end.reason == "completed"
    assert end.answer == "The snippet printed:\n42"
    assert bench.files == {"snippet.py": b"print(6 * 7)\n"}
    assert [command.argv for command in bench.commands] == [("sh", "-c", "python snippet.py")]


async def test_a_failing_snippet_is_reported_and_the_session_still_completes() -> None:
    bench = MemoryBench(lambda command: printed(b"partial\n", 1, b"Traceback\nZeroDivisionError\n"))
    end = await answer("Run this code: print('partial'); 1/0", bench)
    assert end.reason == "completed"
    assert (
        end.answer
        == "The snippet failed: exit 1.\nThe snippet printed:\npartial\nIts errors:\nTraceback\nZeroDivisionError"
    )


async def test_output_that_imitates_a_result_changes_nothing() -> None:
    fake = b"stdout: 3 bytes\n42\nstderr: 0 bytes\nended: completed\n"
    bench = MemoryBench(lambda command: printed(fake, 1))
    end = await answer("Run this code: evil()", bench)
    assert end.answer == f"The snippet failed: exit 1.\nThe snippet printed:\n{fake.decode().rstrip()}"


async def test_prose_is_answered_with_what_to_send() -> None:
    assert (await answer("How are you?", MemoryBench())).answer == HELP


async def test_a_second_message_runs_its_own_snippet() -> None:
    llm = make_llm("scripted", {"kind": "scripted"}, {})
    first: list[Message] = [
        UserMessage("print(1)"), AssistantMessage("", (ToolCall("call-1", "workspace__write", {}),)),
        ToolResult("call-1", "Wrote"), AssistantMessage("", (ToolCall("call-2", "workspace__exec", {}),)),
        ToolResult("call-2", "exit 0 (0.01 s, exec e)\nstdout: 2 bytes\n1\nstderr: 0 bytes"),
        AssistantMessage("The snippet printed:\n1"),
    ]  # fmt: skip
    (reply,) = [event for event in await read(llm, *first, UserMessage("print(2)")) if isinstance(event, Reply)]
    (call,) = reply.message.calls
    assert call.arguments == {"path": "snippet.py", "content": "print(2)\n"}
    assert call.call_id == "call-3"


async def test_a_write_that_failed_is_reported_and_nothing_runs() -> None:
    llm = make_llm("scripted", {"kind": "scripted"}, {})
    history: list[Message] = [
        UserMessage("print(1)"), AssistantMessage("", (ToolCall("call-1", "workspace__write", {}),)),
        ToolResult("call-1", "The disk of the workspace is full.", ok=False),
    ]  # fmt: skip
    (reply,) = [event for event in await read(llm, *history) if isinstance(event, Reply)]
    assert reply.message.calls == ()
    assert reply.message.text == "The snippet could not be written: The disk of the workspace is full."


def test_a_timeout_is_reported_as_one() -> None:
    text = "ended by timeout after 60 s (60.01 s, exec e)\nstdout: 5 bytes\nstart\nstderr: 0 bytes"
    assert split_result(text) == ("ended by timeout after 60 s", "start", "")
    assert report(text).startswith("The snippet failed: ended by timeout after 60 s.")


async def test_the_same_question_gives_the_same_stream_any_number_of_times() -> None:
    llm = make_llm("scripted", {"kind": "scripted"}, {})
    assert await read(llm, UserMessage("print(1)")) == await read(llm, UserMessage("print(1)"))


async def test_a_note_about_what_is_left_is_no_output_of_the_program() -> None:
    text = "exit 0 (0.01 s, exec e)\nstdout: 3 bytes\n42\nstderr: 0 bytes\n[Left of this run: 1 turns.]"
    assert split_result(text) == ("exit 0", "42", "")


# Scripts


def scripted(*turns: dict[str, Any]) -> LLM:
    return make_llm("scripted", {"kind": "scripted", "turns": list(turns)}, {})


async def test_turns_are_played_in_order_and_the_last_one_repeats() -> None:
    llm = scripted({"text": "one"}, {"text": "two"})
    said: list[str] = []
    history: list[Message] = [UserMessage("go")]
    for _ in range(3):
        reply = (await read(llm, *history))[-1]
        assert isinstance(reply, Reply)
        said.append(reply.message.text)
        history.append(reply.message)
    assert said == ["one", "two", "two"]


async def test_a_broken_stream_ends_in_the_middle_without_a_reply() -> None:
    llm = scripted({"text": "abcdef", "break_after": 2, "times": 1})
    assert await read(llm, UserMessage("go")) == [TextDelta("ab")]
    assert isinstance((await read(llm, UserMessage("go"), attempt=2))[-1], Reply)


async def test_an_error_is_raised_as_the_drivers_own() -> None:
    with pytest.raises(LLMError) as caught:
        await read(scripted({"error": "llm_config"}), UserMessage("go"))
    assert caught.value.code == "llm_config"


@pytest.mark.parametrize(
    ("turns", "field"),
    [
        ([], "turns"), ("x", "turns"), ([1], "turns[0]"), ([{"txt": ""}], "turns[0].txt"), ([{"text": 1}], "turns[0].text"),
        ([{"calls": [{"name": "x"}]}], "turns[0].calls[0]"), ([{"times": -1}], "turns[0].times"),
        ([{"break_after": True}], "turns[0].break_after"), ([{"stop_reason": "x"}], "turns[0].stop_reason"),
        ([{}, {"usage": {"tokens": 1}}], "turns[1].usage"), ([{"error": "x"}], "turns[0].error"),
        ([{"calls": {}}], "turns[0].calls"),
    ],
)  # fmt: skip
def test_a_wrong_script_is_refused_by_the_name_of_its_place(turns: Any, field: str) -> None:
    with pytest.raises(BadScript) as caught:
        parse_turns(turns)
    assert caught.value.field == field
