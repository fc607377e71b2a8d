"""What is asked and what never is: caches, thoughts, temperatures, histories, keys."""

from __future__ import annotations

import base64
import logging
from typing import Any
from urllib.parse import quote

import pytest

from agents.llm import make_llm
from agents.llm.base import LLMConfig
from agents.messages import AssistantMessage, ToolCall, ToolResult, UserMessage
from tests.llm.conftest import Making, asking, heard, reply_of
from tests.llm.stub_http import KEY, Fails, Says

KINDS = ("anthropic", "openai")
EXEC = "workspace__exec"
each_kind = pytest.mark.parametrize("kind", KINDS)


async def test_the_stable_prefix_is_marked_for_the_cache(wired: Making) -> None:
    model = wired("anthropic", Says("a"), Says("b"))
    history = (UserMessage("one"), AssistantMessage("a", provider="anthropic"), UserMessage("two"))
    await heard(model.llm, asking(UserMessage("one")))
    await heard(model.llm, asking(*history))
    assert model.stub is not None
    first, second = model.stub.asked
    assert second["system"] == first["system"]
    assert second["tools"] == first["tools"]
    assert first["system"][-1]["cache_control"] == {"type": "ephemeral"}
    assert "cache_control" in second["messages"][-1]["content"][-1]
    assert "cache_control" not in second["messages"][0]["content"][-1]


async def test_temperature_goes_with_the_version_that_knows_it(wired: Making) -> None:
    model = wired("anthropic")
    await heard(model.llm, asking())
    await heard(model.llm, asking(temperature=0.5))
    assert model.stub is not None
    assert [body.get("temperature") for body in model.stub.asked] == [None, 0.5]
    assert model.stub.headers[1]["anthropic-version"] == "2023-06-01"
    assert model.stub.headers[0]["anthropic-version"] != "2023-06-01"


@pytest.mark.parametrize(
    ("thinking", "sent"),
    [
        ("off", None), ("auto", {"type": "adaptive", "display": "summarized"}),
        ({"budget_tokens": 2000}, {"type": "enabled", "budget_tokens": 2000}),
    ],
)  # fmt: skip
async def test_thinking_as_the_agent_wants_it(thinking: Any, sent: Any, wired: Making) -> None:
    model = wired("anthropic")
    await heard(model.llm, asking(thinking=thinking))
    assert model.stub is not None
    assert model.stub.asked[0].get("thinking") == sent


async def test_thinking_is_sent_back_unmodified_and_left_out_when_it_is_refused(wired: Making) -> None:
    says = Says("", thinking="secret thoughts", redacted="x", calls=((EXEC, '{"command": "ls"}'),))
    model = wired("anthropic", says, Says("done"))
    assert model.stub is not None
    message = reply_of(await heard(model.llm, asking(UserMessage("go"), thinking="auto"))).message
    result = ToolResult(message.calls[0].call_id, "a.py")
    await heard(model.llm, asking(UserMessage("go"), message, result, thinking="auto"))
    sent = model.stub.asked[1]["messages"][1]["content"]
    assert sent == list(message.blocks)
    assert [block["type"] for block in sent] == ["thinking", "redacted_thinking", "tool_use"]
    assert sent[0]["thinking"] == "secret thoughts"
    assert not model.stub.refusals
    forged = tuple(
        {**block, **({"thinking": "other"} if block["type"] == "thinking" else {})} for block in message.blocks
    )
    broken = AssistantMessage(message.text, message.calls, forged, message.provider)
    assert reply_of(await heard(model.llm, asking(UserMessage("go"), broken, result))).message.text == "done"
    assert len(model.stub.refusals) == 1
    assert [block["type"] for block in model.stub.asked[-1]["messages"][1]["content"]] == ["tool_use"]


async def test_empty_blocks_are_never_sent_back(wired: Making) -> None:
    message = reply_of(await heard(wired("anthropic", Says("")).llm, asking())).message
    assert message.blocks == ({"type": "text", "text": ""},)
    model = wired("anthropic", Says("ok"))
    call = ToolCall("toolu_1", EXEC, {})
    unsigned = {"type": "thinking", "thinking": "of an endpoint that signs nothing", "signature": ""}
    blocks = (
        unsigned, {"type": "text", "text": " \n"}, {"type": "tool_use", "id": "toolu_1", "name": EXEC, "input": {}},
    )  # fmt: skip
    history = (
        UserMessage("go"), message, AssistantMessage("", (call,), blocks, "anthropic"), ToolResult("toolu_1", ""),
    )  # fmt: skip
    await heard(model.llm, asking(*history))
    assert model.stub is not None
    assert not model.stub.refusals


async def test_chat_completions_has_no_thinking_to_set(wired: Making) -> None:
    model = wired("openai")
    with pytest.raises(LLMConfig, match="no setting for thinking"):
        await heard(model.llm, asking(thinking="auto"))
    assert model.stub is not None
    assert not model.stub.asked


async def test_ids_that_are_missing_or_doubled_become_distinct(wired: Making) -> None:
    calls = tuple((EXEC, '{"command": "ls"}') for _ in range(3))
    for kind in KINDS:
        model = wired(kind, Says(calls=calls, ids=("", "x", "x")), Says("ok"))
        message = reply_of(await heard(model.llm, asking())).message
        assert len({call.call_id for call in message.calls}) == 3
        results = [ToolResult(call.call_id, "r") for call in message.calls]
        await heard(model.llm, asking(UserMessage("go"), message, *results))
        assert model.stub is not None
        assert not model.stub.refusals


@each_kind
async def test_a_question_without_tools_to_call_still_describes_them(kind: str, wired: Making) -> None:
    model = wired(kind)
    await heard(model.llm, asking(may_call=False))
    assert model.stub is not None
    assert model.stub.asked[0]["tools"]
    assert model.stub.asked[0]["tool_choice"] in ("none", {"type": "none"})


@each_kind
async def test_a_driver_that_remembers_a_history_asks_like_a_new_one(kind: str, wired: Making) -> None:
    call = ToolCall("toolu_1", EXEC, {"command": "echo ü\ud800"})
    first = (UserMessage("go \ud83d"), AssistantMessage("Looking.", (call,), (), "another"))
    grown = (*first, ToolResult("toolu_1", "a.py"))
    shorter = (UserMessage("another go"), *grown[1:], AssistantMessage("Half.", (), (), kind), UserMessage("and?"))
    old = wired(kind)
    assert old.stub is not None
    for history in (grown, shorter, (*shorter, UserMessage("really?")), grown):
        await heard(old.llm, asking(*history))
        new = wired(kind)
        await heard(new.llm, asking(*history))
        assert new.stub is not None
        assert old.stub.asked[-1] == new.stub.asked[0]
    assert not old.stub.refusals


async def test_no_model_named_is_a_sentence(wired: Making) -> None:
    llm = wired("anthropic").llm
    request = asking()
    with pytest.raises(LLMConfig, match="No model is named"):
        await heard(llm, type(request)(**{name: getattr(request, name) for name in request.__slots__} | {"model": ""}))


# -- keys


@each_kind
@pytest.mark.parametrize("shape", ["plain", "base64", "url", "stars"])
async def test_a_key_that_the_endpoint_quotes_is_not_in_the_error(
    kind: str, shape: str, wired: Making, caplog: pytest.LogCaptureFixture
) -> None:
    quoted = {
        "plain": KEY, "base64": base64.b64encode(KEY.encode()).decode(), "url": quote(KEY, safe=""), "stars": "sk-sent****alue",
    }[shape]  # fmt: skip
    model = wired(kind, Fails(401, "authentication_error", f"Incorrect API key provided: {quoted}. Look."))
    with caplog.at_level(logging.DEBUG), pytest.raises(LLMConfig) as caught:
        await heard(model.llm, asking())
    assert quoted not in caught.value.detail
    assert "[secret]" in caught.value.detail
    assert KEY not in repr(model.llm.endpoint)  # type: ignore[attr-defined]
    assert KEY not in caplog.text


@each_kind
async def test_a_wrong_key_is_a_sentence_without_it(kind: str, wired: Making) -> None:
    wrong = "sk-wrong-1234567890"
    with pytest.raises(LLMConfig, match="does not accept the key") as caught:
        await heard(wired(kind, key=wrong).llm, asking())
    assert wrong not in caught.value.detail


# What the SDKs would pick up from the server's environment and hand to an endpoint that a person chose.
AMBIENT = {
    "ANTHROPIC_API_KEY": "sk-ambient", "ANTHROPIC_AUTH_TOKEN": "ambient-token", "OPENAI_API_KEY": "sk-ambient",
    "OPENAI_ADMIN_KEY": "sk-ambient-admin", "OPENAI_ORG_ID": "org-ambient", "OPENAI_PROJECT_ID": "proj-ambient",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Ambient: ambient-header\nAuthorization: Bearer ambient-bearer\nx-api-key: ambient-x\nUser-Agent: ambient-agent",
    "OPENAI_CUSTOM_HEADERS": "X-Ambient: ambient-header\nauthorization: Bearer ambient-bearer\nOpenAI-Beta: ambient-beta\nHost: ambient.example",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1",
    "ANTHROPIC_PROFILE": "ambient", "ANTHROPIC_IDENTITY_TOKEN": "ambient-identity",
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"), "http://ambient-user:ambient-password@127.0.0.1:1"),
}  # fmt: skip


@pytest.fixture
def ambient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in AMBIENT.items():
        monkeypatch.setenv(name, value)


@each_kind
@pytest.mark.parametrize("key", [KEY, ""], ids=["with key", "without key"])
async def test_nothing_of_the_servers_environment_reaches_an_endpoint(
    kind: str, key: str, ambient: None, wired: Making
) -> None:
    model = wired(kind, key=key)
    assert model.stub is not None
    model.stub.needs_key = False
    assert reply_of(await heard(model.llm, asking())).message.text == "Hello."
    assert await model.llm.models() == ["stub-1", "stub-2"]
    assert len(model.stub.headers) == 2
    for headers in model.stub.headers:
        assert "ambient" not in repr(headers).lower()
        assert headers["authorization"] == f"Bearer {key or 'none'}"
        assert headers.get("x-api-key") in ((key or "none",) if kind == "anthropic" else (None,))
        assert headers["host"] == model.stub.host


@each_kind
async def test_an_endpoint_learns_nothing_of_the_servers_machine(kind: str, wired: Making) -> None:
    model = wired(kind)
    await heard(model.llm, asking())
    assert model.stub is not None
    known = {
        "host", "accept", "accept-encoding", "connection", "content-type", "content-length", "user-agent", "authorization",
        "anthropic-version", "x-api-key",
    }  # fmt: skip
    assert model.stub.headers[0].keys() <= known


@each_kind
async def test_the_servers_key_is_no_provider_without_one(kind: str, ambient: None, wired: Making) -> None:
    with pytest.raises(LLMConfig, match="does not accept the key"):
        await heard(wired(kind, key="").llm, asking())


@each_kind
def test_the_servers_base_url_is_no_provider_without_one(kind: str, ambient: None) -> None:
    llm = make_llm(kind, {"kind": kind}, {"api_key": KEY})
    url = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1/"}[kind]
    assert str(llm.client.base_url).rstrip("/") == url.rstrip("/")  # type: ignore[attr-defined]


def test_the_apis_own_address_needs_a_key() -> None:
    for kind in KINDS:
        with pytest.raises(LLMConfig, match="has no key"):
            make_llm(kind, {"kind": kind}, {})
    with pytest.raises(LLMConfig, match="no variable ABSENT_API_KEY"):
        make_llm("openai", {"kind": "openai", "api_key_env": "ABSENT_API_KEY"}, {})
