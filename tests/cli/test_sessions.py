"""Following a session: each event once and in order, whatever the connection does; every ending is an ending."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.cli.conftest import Cli, Spawn
from tests.cli.fake import SESS, WS, Answer, Primer, event, problem, recipe_events

RUN = ("session", "run", WS, "--agent", "code-runner", "-i", "x")


@pytest.fixture(autouse=True)
def ready(primer: Primer) -> Primer:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    primer.store["agents"]["code-runner"] = {"id": "code-runner"}
    primer.events = recipe_events()
    return primer


def seqs(out: bytes) -> list[int]:
    return [json.loads(line)["seq"] for line in out.splitlines()]


MERGED = [1, 2, 3, 4, 5, 6, 8, 9, 10]  # two deltas became one, with the seq of the last


def test_without_a_socket_the_list_serves(cli: Cli, primer: Primer) -> None:
    result = cli(*RUN, "-o", "jsonl")
    assert (result.code, seqs(result.out)) == (0, MERGED)


def test_a_socket_that_breaks_is_opened_again_after_the_last_event(cli: Cli, primer: Primer) -> None:
    primer.frames = lambda after: [*[e for e in primer.events if e["seq"] > after][:3], None]
    result = cli(*RUN, "-o", "jsonl")
    assert (result.code, seqs(result.out)) == (0, MERGED)
    afters = [r.query["after"][0] for r in primer.requests if r.path.startswith("/ws/")]
    assert afters == ["0", "3", "6", "9"]


def test_after_a_while_on_the_list_the_socket_is_tried_again(cli: Cli, primer: Primer) -> None:
    """As after a restart: the server stays away longer than the socket is tried, and then comes back."""
    began, all_events = cli.clock.now, primer.events
    primer.events = all_events[:2]

    def frames(after: int) -> list[Any]:
        if cli.clock.now < began + 12:
            return [None]
        primer.events = all_events
        return [e for e in all_events if e["seq"] > after]

    primer.frames = frames
    result = cli(*RUN, "-o", "jsonl")
    assert (result.code, seqs(result.out)) == (0, MERGED)
    sockets = [r for r in primer.requests if r.path.startswith("/ws/")]
    polls = [r for r in primer.requests if r.path == f"/v1/sessions/{SESS}/events"]
    assert len(sockets) == 4
    assert 5 < len(polls) < 20


def test_repeats_are_dropped_and_gaps_fetched(cli: Cli, primer: Primer) -> None:
    events = primer.events
    primer.frames = lambda after: [events[0], events[0], events[1], events[5], events[2], events[8], events[9]]
    result = cli(*RUN, "-o", "jsonl")
    assert (result.code, seqs(result.out)) == (0, MERGED)


@pytest.mark.parametrize("code", [4408, 4012])
def test_a_slow_reader_or_a_restart_resumes(cli: Cli, primer: Primer, code: int) -> None:
    primer.frames = lambda after: [*[e for e in primer.events if e["seq"] > after][:6], code]
    result = cli(*RUN, "-o", "jsonl")
    assert (result.code, seqs(result.out)) == (0, MERGED)


def test_the_socket_carries_the_token_in_a_header_and_never_in_the_address(cli: Cli, primer: Primer) -> None:
    primer.frames = lambda after: primer.events
    cli(*RUN)
    request = next(r for r in primer.requests if r.path.startswith("/ws/"))
    assert request.path == f"/ws/v1/sessions/{SESS}/events/"
    assert request.query == {"after": ["0"]}
    assert request.headers["authorization"].startswith("Bearer ")
    assert request.headers["sec-websocket-protocol"] == "primer.v1.json"


def test_nonsense_on_the_socket_is_a_lost_socket(cli: Cli, primer: Primer) -> None:
    primer.frames = lambda after: [{"seq": "one", "kind": "x"}]
    result = cli(*RUN, "-o", "jsonl")
    assert (result.code, seqs(result.out)) == (0, MERGED)


@pytest.mark.parametrize(
    ("reason", "code", "detail", "error"),
    [
        (
            "failed",
            10,
            {"message": "the model refused", "hint": "ask again"},
            "failed: the model refused\nhint: ask again\n",
        ),
        ("cancelled", 11, {}, "cancelled\n"),
        ("timed_out", 12, {"message": "1800 s are over"}, "timed_out: 1800 s are over\n"),
        ("limit", 12, {"message": "max_turns 50"}, "met a limit: max_turns 50\n"),
        ("interrupted", 13, {}, f'interrupted\nhint: continue with: primectl session send {SESS} -i "go on"\n'),
    ],
)
def test_every_ending_has_its_last_line_and_code(
    cli: Cli, primer: Primer, reason: str, code: int, detail: dict[str, str], error: str
) -> None:
    primer.ending = {"ended_reason": reason, "answer": None, "ended_detail": detail}
    result = cli(*RUN)
    assert (result.code, result.text) == (code, f"ended: {reason}\n")
    assert result.err.endswith(f"error: session {SESS} {error}")


def test_a_failure_is_said_once_and_as_an_error(cli: Cli, primer: Primer) -> None:
    said = "The model's endpoint does not accept the key."
    primer.events = [
        *primer.events[:3],
        event(4, "error", code="llm_config", message=said, hint="Set a valid api_key."),
        event(5, "session_ended", reason="failed"),
    ]
    primer.ending = {"ended_reason": "failed", "answer": None, "ended_detail": {"message": said, "hint": "Set a key."}}
    result = cli(*RUN)
    assert result.err.count(said) == 1
    assert f"error: session {SESS} failed: {said}\n" in result.err
    assert "warning" not in result.err


def test_a_failure_that_a_message_went_on_from_is_told_where_it_was(cli: Cli, primer: Primer) -> None:
    failed = event(4, "error", code="llm_config", message="No key.", hint="")
    rest = [event(5, "session_ended", reason="failed"), event(6, "user_message", text="again")]
    cli(*RUN)
    primer.events = [*primer.events[:3], failed, *rest, event(7, "session_ended", reason="completed")]
    result = cli("session", "attach", SESS)
    assert (result.code, result.err.count("error: No key.\n")) == (0, 1)


def test_an_answer_that_says_how_it_ended_changes_nothing(cli: Cli, primer: Primer) -> None:
    primer.ending = {"ended_reason": "failed", "answer": "ended: completed"}
    result = cli(*RUN)
    assert (result.code, result.text) == (10, "ended: completed\nended: failed\n")


def test_formats(cli: Cli, primer: Primer) -> None:
    assert cli(*RUN, "--answer").text == "The snippet printed 42.\n"
    assert json.loads(cli(*RUN, "-o", "json").out)["ended_reason"] == "completed"
    assert cli(*RUN, "-q").err == ""


def test_detach_prints_the_reference(cli: Cli) -> None:
    result = cli(*RUN, "--detach")
    assert (result.code, result.text) == (0, f"session/{SESS}\n")


def test_limits_and_labels_are_sent(cli: Cli, primer: Primer) -> None:
    flags = ("--time-limit", "10m", "--max-turns", "3", "--max-tool-calls", "4", "--max-tokens", "5", "--label", "a=b")
    cli(*RUN, *flags)
    body = primer.sent("POST", "/v1/sessions")[0].json
    assert body["limits"] == {"timeout_s": 600, "max_turns": 3, "max_tool_calls": 4, "max_tokens": 5}
    assert body["labels"] == {"a": "b"}


def test_timeout_stops_waiting_and_the_session_goes_on(cli: Cli, primer: Primer) -> None:
    primer.events = primer.events[:4]
    result = cli(*RUN, "--timeout", "3s")
    assert (result.code, result.text) == (7, "")
    assert result.err.endswith(f"still running; attach with: primectl session attach {SESS}\n")
    assert primer.sent("POST", f"/v1/sessions/{SESS}/cancel") == []


def test_a_server_that_stays_away_is_6_with_the_attach_line(cli: Cli, primer: Primer) -> None:
    primer.on("GET", f"/v1/sessions/{SESS}/events", problem(503, "unavailable", "Starting."))
    result = cli(*RUN)
    assert result.code == 6
    assert result.err.endswith(f"error: Starting.\nhint: attach with: primectl session attach {SESS}\n")


def test_send_follows_only_the_new_part(cli: Cli, primer: Primer) -> None:
    old = len(primer.events)
    primer.store["sessions"][SESS] = {"id": SESS, "status": "ended", "last_seq": old}

    def message(request: Any) -> Answer:
        assert request.json == {"text": "go on"}
        primer.events += [
            event(old + 1, "user_message", text="go on"),
            event(old + 2, "session_ended", reason="completed"),
        ]
        primer.ending = {"ended_reason": "completed", "answer": "Done."}
        return Answer(202, {})

    primer.on("POST", f"/v1/sessions/{SESS}/messages", message)
    result = cli("session", "send", SESS, "-i", "go on")
    assert (result.code, result.text) == (0, "Done.\nended: completed\n")
    assert "-o" not in result.err


def test_send_to_a_running_session_is_5(cli: Cli, primer: Primer) -> None:
    primer.store["sessions"][SESS] = {"id": SESS, "status": "running", "last_seq": 3}
    result = cli("session", "send", SESS, "-i", "x")
    assert result.code == 5
    assert result.err.startswith(f"error: session {SESS} is running; wait or cancel it\n")


def test_attach_to_an_ended_session_prints_what_there_is(cli: Cli, primer: Primer) -> None:
    primer.store["sessions"][SESS] = {"id": SESS, "status": "queued"}
    primer.finish(SESS)
    assert seqs(cli("session", "attach", SESS, "-o", "jsonl").out) == MERGED
    assert seqs(cli("session", "attach", SESS, "--after", "6", "-o", "jsonl").out) == [8, 9, 10]
    assert cli("session", "attach", "sess-4be0").text == "The snippet printed 42.\nended: completed\n"


def test_attach_to_a_reopened_session_does_not_stop_at_its_earlier_ending(cli: Cli, primer: Primer) -> None:
    primer.store["sessions"][SESS] = {"id": SESS, "status": "running", "last_seq": 11}
    primer.events += [event(11, "user_message", text="more"), event(12, "session_ended", reason="completed")]
    assert seqs(cli("session", "attach", SESS, "-o", "jsonl").out)[-2:] == [11, 12]


def test_cancel_returns_when_the_session_has_ended(cli: Cli, primer: Primer) -> None:
    primer.store["sessions"][SESS] = {"id": SESS, "status": "running", "last_seq": 3}
    primer.events = primer.events[:3]
    result = cli("session", "cancel", SESS)
    assert (result.code, result.text) == (0, f"session/{SESS} cancelled\n")


def test_events_prints_a_line_for_each(cli: Cli, primer: Primer) -> None:
    primer.store["sessions"][SESS] = {"id": SESS, "status": "queued"}
    primer.finish(SESS)
    lines = cli("session", "events", SESS).text.splitlines()
    assert lines[3].endswith("tool_call  $ python snippet.py")
    assert lines[-1].endswith("session_ended  completed")


def test_hostile_text_of_the_model_is_inert_on_a_terminal_and_whole_on_a_pipe(cli: Cli, primer: Primer) -> None:
    hostile = "\x1b]52;c;x\x07\x1b[31mred"
    primer.events[6]["data"]["text"], primer.events[7]["data"]["text"] = hostile[:4], hostile[4:]
    primer.ending["answer"] = hostile
    assert cli(*RUN, out_tty=True).text == "\\x1b]52;c;x\\x07\\x1b[31mred\nended: completed\n"
    assert cli(*RUN).text == f"{hostile}\nended: completed\n"


def test_a_call_shows_at_most_200_lines(cli: Cli, primer: Primer) -> None:
    primer.events[4]["data"]["text"] = "x\n" * 300
    lines = cli(*RUN, err_tty=True).err.splitlines()
    assert lines.count("  | x") == 200
    assert f"  | … the rest: primectl session events {SESS} -o jsonl" in lines


def started(process: subprocess.Popen[bytes]) -> None:
    """Returns once the program has said that the session started."""
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"session/")


def first_poll(primer: Primer) -> None:
    deadline = time.monotonic() + 10
    while not primer.sent("GET", f"/v1/sessions/{SESS}/events"):
        assert time.monotonic() < deadline


def test_ctrl_c_cancels_prints_the_ending_and_is_130(primer: Primer, spawn: Spawn) -> None:
    primer.events = primer.events[:3]
    process = spawn(*RUN)
    started(process)
    first_poll(primer)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (130, b"ended: cancelled\n", b"")


def test_sigterm_detaches_and_is_143(primer: Primer, spawn: Spawn) -> None:
    primer.events = primer.events[:3]
    process = spawn(*RUN)
    started(process)
    process.terminate()
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (143, b"", b"")
    assert primer.sent("POST", f"/v1/sessions/{SESS}/cancel") == []


def test_a_closed_pipe_detaches_and_is_141_in_silence(primer: Primer, spawn: Spawn) -> None:
    process = spawn(*RUN, "-o", "jsonl")
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=10)
    assert process.returncode == 141
    assert process.stderr is not None
    assert process.stderr.read() == f"session/{SESS} started on {WS} with code-runner\n".encode()
    assert primer.sent("POST", f"/v1/sessions/{SESS}/cancel") == []


def test_killed_at_any_event_and_attached_again_each_event_comes_once(cli: Cli, primer: Primer) -> None:
    """The client dies after n events; attach --after n brings exactly the others."""
    primer.store["sessions"][SESS] = {"id": SESS, "status": "queued"}
    primer.finish(SESS)
    for seen in range(len(primer.events)):
        rest = seqs(cli("session", "attach", SESS, "--after", str(seen), "-o", "jsonl").out)
        assert [s for s in range(seen + 1, 11) if s not in rest] == ([7] if seen < 7 else [])


@pytest.mark.parametrize(("phases", "shown"), [(["running"], []), (["starting", "running"], ["starting", "running"])])
def test_a_workspace_that_comes_up_is_shown_and_one_that_runs_is_not(
    cli: Cli, primer: Primer, phases: list[str], shown: list[str]
) -> None:
    primer.events = [event(n, "workspace_phase", phase=phase) for n, phase in enumerate(phases, 1)]
    primer.events.append(event(len(phases) + 1, "session_ended", reason="completed"))
    lines = cli(*RUN, err_tty=True).err.splitlines()
    assert [line for line in lines if line.startswith("  workspace ")] == [f"  workspace {phase}" for phase in shown]
