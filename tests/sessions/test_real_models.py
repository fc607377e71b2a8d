"""Sessions on models behind HTTP: what the transcript shows of them, what they cost, how they end."""

from __future__ import annotations

import pytest

from accounts.models import User
from agents.messages import Usage
from tests.factories import Api, make_workspace
from tests.llm.conftest import STUBS
from tests.llm.stub_http import Fails, How, Says, StubServer
from tests.sessions.cast import ended, events_of, start
from tests.sessions.conftest import Process
from tests.sessions.models import Modelled, count_of, data_of, each_kind, exported, run
from workspaces.models import Workspace, WorkspaceTemplate


@each_kind
def test_a_model_thinks_calls_and_answers_and_each_turn_has_its_cost(
    kind: str, process: Process, workspace: Workspace, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    used = Usage(1000, 100, 2000, 400)
    agent = modelled(
        kind, Says("Let me run it.", "Easy.", (run("python -c 'print(6*7)'"),), usage=used), Says("It is 42.", usage=used),
        agent={} if kind == "openai" else {"thinking": "auto"},
    )  # fmt: skip
    session_id = start(alice, workspace, agent, "What is six times seven?")
    item = ended(alice, session_id)
    assert (item["ended_reason"], item["answer"], item["turns"]) == ("completed", "It is 42.", 2), item
    assert "".join(data["text"] for data in data_of(session_id, "thinking_delta")) == "Easy."
    assert [data["text"] for data in data_of(session_id, "assistant_message")] == ["Let me run it.", "It is 42."]
    cost = (1000 * 3 + 100 * 15 + 2000 * 0.3 + 400 * 3.75) / 1e6
    assert [data["usage"]["cost"] for data in data_of(session_id, "turn_ended")] == [pytest.approx(cost)] * 2
    assert [data["model"] for data in data_of(session_id, "turn_started")] == ["stub-1"] * 2
    assert item["usage"]["cost"] == pytest.approx(2 * cost)
    assert (item["usage"]["input_tokens"], item["usage"]["cache_read_tokens"]) == (2000, 4000)
    assert not stubs[0].refusals
    used_by_agent = alice.get(f"agents/{agent.slug}/usage").json()
    assert (used_by_agent["sessions"], used_by_agent["turns"], used_by_agent["tool_calls"]) == (1, 2, 1)
    assert used_by_agent["usage"] == {**item["usage"], "cost": pytest.approx(2 * cost)}


@each_kind
def test_retries_are_shown_text_is_not_doubled_and_no_program_runs_twice(
    kind: str, process: Process, workspace: Workspace, modelled: Modelled, alice: Api
) -> None:
    done = Says("All done.")
    half = len(STUBS[kind]().sse(done, 3)) // 2
    agent = modelled(
        kind, Says(calls=(run("echo x >> count"),)), Fails(529, "overloaded_error", "Overloaded", (("retry-after", "0"),)),
        Fails(200, "overloaded_error", "Overloaded", inside=True), (done, How(cut=half)), done,
    )  # fmt: skip
    session_id = start(alice, workspace, agent, "go")
    item = ended(alice, session_id)
    assert (item["ended_reason"], item["answer"]) == ("completed", "All done."), item
    warnings = data_of(session_id, "warning")
    assert [(w["code"], w["attempt"], w["attempts"]) for w in warnings] == [
        ("llm_unavailable", n, 5) for n in (2, 3, 4)
    ]
    assert warnings[0]["message"].endswith("Retrying in 0 s (2 of 5).")
    assert [data["text"] for data in data_of(session_id, "assistant_message")] == ["", "All done."]
    assert "All done." in exported(alice, session_id, "md")
    assert count_of(alice, workspace, "count") == "x\n"
    assert len(data_of(session_id, "tool_result")) == 1


@each_kind
def test_without_a_price_or_a_token_no_cost_is_shown(
    kind: str, process: Process, workspace: Workspace, modelled: Modelled, alice: Api
) -> None:
    failing = modelled(kind, Fails(401), prices={})
    free = modelled(kind, Says("Done.", usage=Usage(100, 7)), prices={})
    priced = modelled(kind, Fails(401))
    for agent in (failing, free, priced):
        item = ended(alice, start(alice, workspace, agent, "go"))
        assert item["usage"]["cost"] is None, agent.provider.slug
        assert data_of(str(item["id"]), "session_ended")[0]["totals"]["usage"]["cost"] is None


@each_kind
def test_a_model_that_stays_away_fails_and_a_message_goes_on(
    kind: str, process: Process, workspace: Workspace, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    away = Fails(503, headers=(("retry-after", "0"),))
    agent = modelled(kind, Says(calls=(run("echo x >> count"),)), away, away, Says("Back again."), max_retries=1)
    session_id = start(alice, workspace, agent, "go")
    item = ended(alice, session_id)
    assert (item["ended_reason"], item["ended_detail"]["code"]) == ("failed", "llm_unavailable")
    assert "message" in item["ended_detail"]["hint"]
    assert alice.post(f"sessions/{session_id}/messages", {"text": "and now?"}).status_code == 200
    item = ended(alice, session_id)
    assert (item["ended_reason"], item["answer"]) == ("completed", "Back again.")
    assert count_of(alice, workspace, "count") == "x\n"
    assert not stubs[0].refusals


@pytest.mark.parametrize(
    ("says", "reason", "code"),
    [
        (Says("No.", stop="refusal"), "failed", "refused"), (Says(""), "failed", "empty_reply"),
        (Says("Half a sent", stop="max_tokens"), "limit", "max_output_tokens"), (Says("", "only thoughts"), "failed", "empty_reply"),
        (Says("", stop="pause"), "limit", "max_turns"),
    ],
)  # fmt: skip
@each_kind
def test_odd_endings_are_never_completed_and_the_session_goes_on(
    kind: str, says: Says, reason: str, code: str, process: Process, workspace: Workspace, modelled: Modelled, alice: Api,
    stubs: list[StubServer],
) -> None:  # fmt: skip
    if says.stop == "pause" and kind == "openai":
        reason, code = "failed", "empty_reply"  # it has no such ending: an empty reply is one
    agent = modelled(kind, says, says, says, Says("Fine."), agent={"limits": {"max_turns": 2}})
    session_id = start(alice, workspace, agent, "go")
    item = ended(alice, session_id)
    assert (item["ended_reason"], item["ended_detail"]["code"]) == (reason, code), item
    stubs[0].steps = [Says("Fine.")]
    assert alice.post(f"sessions/{session_id}/messages", {"text": "again"}).status_code == 200
    assert ended(alice, session_id)["answer"] == "Fine."
    assert not stubs[0].refusals


@each_kind
def test_a_call_cut_by_the_limit_writes_no_half_file(
    kind: str, process: Process, workspace: Workspace, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    cut = Says(calls=(("workspace__write", '{"path":"a.py","content":"imp'),), stop="max_tokens")
    whole = Says(calls=(("workspace__write", '{"path":"a.py","content":"import os\\n"}'),))
    broken = Says(calls=(("workspace__write", '{"path": INVALID}'),))
    agent = modelled(kind, cut, broken, whole, Says("Written."))
    session_id = start(alice, workspace, agent, "go")
    assert ended(alice, session_id)["answer"] == "Written."
    assert [data["ok"] for data in data_of(session_id, "tool_result")] == [False, False, True]
    assert count_of(alice, workspace, "a.py") == "import os\n"
    assert not stubs[0].refusals


def test_thoughts_go_back_unmodified_also_after_a_message_and_masked_ones_do_not(
    process: Process, template: WorkspaceTemplate, owner: User, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    workspace = make_workspace(owner, template, env={"TOKEN": {"secret": "a-sentinel-secret"}})
    agent = modelled(
        "anthropic", Says("", "First thought.", (run("true"),)), Says("One.", "It says a-sentinel-secret."), Says("Two."),
        agent={"thinking": "auto"},
    )  # fmt: skip
    session_id = start(alice, workspace, agent, "go")
    ended(alice, session_id)
    alice.post(f"sessions/{session_id}/messages", {"text": "more"})
    assert ended(alice, session_id)["answer"] == "Two."
    sent = [block for m in stubs[0].asked[2]["messages"] for block in m["content"] if block["type"] == "thinking"]
    assert [block["thinking"] for block in sent] == ["First thought."]
    assert not stubs[0].refusals
    assert "a-sentinel-secret" not in str([event.data for event in events_of(session_id)])


@each_kind
def test_a_conversation_that_no_longer_fits_is_made_shorter_and_says_so(
    kind: str, process: Process, workspace: Workspace, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    noise = Says(calls=(run("echo x >> count; python -c 'print(\"y\" * 6000)'"),))
    agent = modelled(kind, *[noise] * 5, Says("Done."))
    stubs[0].max_tokens_of_context = 4500
    session_id = start(alice, workspace, agent, "Do it five times.")
    item = ended(alice, session_id)
    assert (item["ended_reason"], item["answer"]) == ("completed", "Done."), item
    warnings = data_of(session_id, "warning")
    assert {warning["code"] for warning in warnings} == {"compacted"}
    assert "shortened" in warnings[0]["message"]
    assert count_of(alice, workspace, "count") == "x\n" * 5, "no program ran twice"
    refused = len(stubs[0].refusals)
    alice.post(f"sessions/{session_id}/messages", {"text": "more"})
    assert ended(alice, session_id)["answer"] == "Done."
    assert len(stubs[0].refusals) == refused, "the shorter conversation is remembered"
    assert refused == len([refusal for refusal in stubs[0].refusals if "maximum" in refusal])


def test_at_a_limit_the_model_answers_once_more(
    process: Process, workspace: Workspace, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    agent = modelled("anthropic", Says(calls=(run("true"),)), Says(calls=(run("true"),)), Says("As far as I came."))
    item = ended(alice, start(alice, workspace, agent, "go", limits={"max_turns": 2}))
    assert (item["ended_reason"], item["ended_detail"]["code"]) == ("limit", "max_turns")
    assert item["answer"] == "As far as I came."
    shown = [data["turn"] for data in data_of(str(item["id"]), "turn_started")]
    assert item["turns"] == len(shown) == max(shown) == 3
    assert stubs[0].asked[-1]["tool_choice"] == {"type": "none"}
    assert not stubs[0].refusals
