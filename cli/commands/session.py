"""`primectl session`: run an agent, follow it, talk to it, cancel it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.app import App
from cli.command import Group, command
from cli.commands.following import Watch, last_seq
from cli.commands.get import pairs
from cli.commands.history import session_events, session_transcript
from cli.errors import NOT_THERE, ApiError, CliError, Exit, UsageError
from cli.kinds import AGENT, SESSION, TEMPLATE, WORKSPACE, Kind, Ref, ref_of
from cli.text import duration, whole_seconds
from cli.text import time_limit as limit_of

STYLES = ("text", "answer", "json", "jsonl")
_PATIENCE_S = 60.0

session = Group(
    "session",
    help="Run agents in workspaces, follow and cancel them.",
    short_help="Run agents in workspaces, follow and cancel them.",
    examples=(
        'primectl session run ws-1a2b3c4d5e6f7081 --agent code-runner -i "Run this code: print(6 * 7)"',
        "primectl session attach sess-4be0c1d2e3f40516",
    ),
)

instructions_option = click.option(
    "-i", "--instructions", metavar="TEXT|@FILE|-", required=True, help="What to do: text, a file, or standard input."
)
detach_option = click.option("-d", "--detach", "--no-watch", "detach", is_flag=True, help="Start it and return.")
answer_option = click.option("--answer", is_flag=True, help="The answer and nothing else: -o answer.")
timeout_option = click.option("--timeout", metavar="DURATION", help="Stop waiting after this; the session goes on.")


@command(
    "run",
    'primectl session run ws-1a2b3c4d5e6f7081 --agent code-runner -i "Run this code: print(6 * 7)"',
    "primectl session run --template default --agent default-runner -i @task.txt --answer",
    "primectl session run ws-1a2b --agent code-runner -i - --detach",
    short_help="Start a session and follow it to its end.",
)
@click.argument("workspace_name", required=False, metavar="[WORKSPACE]")
@click.option("--agent", "agent_name", required=True, metavar="ID", help="The agent that works.")
@click.option("--template", "template_name", metavar="ID", help="Instead of WORKSPACE: one that is removed at the end.")
@instructions_option
@timeout_option
@click.option("--time-limit", metavar="DURATION", help="Limit of the session: it ends.")
@click.option("--max-turns", type=click.IntRange(min=1), metavar="N", help="Limit of the session: model turns.")
@click.option("--max-tool-calls", type=click.IntRange(min=1), metavar="N", help="Limit of the session: tool calls.")
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Limit of the session: tokens.")
@detach_option
@answer_option
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label; repeatable.")
@click.pass_obj
def session_run(
    app: App,
    *,
    workspace_name: str | None,
    agent_name: str,
    template_name: str | None,
    instructions: str,
    timeout: str | None,
    time_limit: str | None,
    max_turns: int | None,
    max_tool_calls: int | None,
    max_tokens: int | None,
    detach: bool,
    answer: bool,
    labels: tuple[str, ...],
) -> None:
    """Start a session of an agent in a workspace and follow it: the answer on stdout, the calls on stderr."""
    style = _style(app, answer)
    if bool(workspace_name) == bool(template_name):
        raise UsageError("give either WORKSPACE or --template", hint="see: primectl session run --help")
    limits = {"max_turns": max_turns, "max_tool_calls": max_tool_calls, "max_tokens": max_tokens}
    if time_limit:
        limits["timeout_s"] = whole_seconds(limit_of(time_limit, "--time-limit"))
    wait_s = duration(timeout, "--timeout") if timeout else None
    body: dict[str, Any] = {"agent_id": ref_of(AGENT, agent_name).id, "initial_instructions": _text(app, instructions)}
    if workspace_name:
        body["workspace_id"] = app.full(ref_of(WORKSPACE, workspace_name)).id
    else:
        body["template_id"] = ref_of(TEMPLATE, str(template_name)).id
    given = {name: value for name, value in limits.items() if value is not None}
    body |= {"limits": given} if given else {}
    body |= {"labels": pairs("--label", labels)} if labels else {}
    try:
        item = app.client.post("/v1/sessions", body).object
    except ApiError as exc:
        raise _not_started(app, exc, body) from exc
    _begun(app, item, style, detach=detach, wait_s=wait_s)


@command(
    "send",
    'primectl session send sess-4be0c1d2e3f40516 -i "now with 8 * 9"',
    "primectl session send sess-4be0 -i @more.txt --answer",
    short_help="Continue an ended session and follow it.",
)
@click.argument("session_name", metavar="SESSION")
@instructions_option
@timeout_option
@detach_option
@answer_option
@click.pass_obj
def session_send(
    app: App, *, session_name: str, instructions: str, timeout: str | None, detach: bool, answer: bool
) -> None:
    """Continue an ended session with a message and follow the new part like `session run`."""
    style = _style(app, answer)
    wait_s = duration(timeout, "--timeout") if timeout else None
    ref, text = app.full(ref_of(SESSION, session_name)), _text(app, instructions)
    before = app.fetch(ref)
    seq = last_seq(before)
    try:
        app.client.post(app.path(ref, "messages"), {"text": text})
    except ApiError as exc:
        if exc.status == 409 and before.get("status") != "ended":
            exc.lines = [f"session {ref.id} is running; wait or cancel it"]
            exc.hint = f"primectl session attach {ref.id}, or: primectl session cancel {ref.id}"
        raise
    if detach:
        _started(app, before, style)
        return
    deadline = app.clock() + wait_s if wait_s is not None else None
    Watch(app, ref.id, style).to_end(after=seq, settled=seq, deadline=deadline)


@command(
    "attach",
    "primectl session attach sess-4be0c1d2e3f40516",
    "primectl session attach sess-4be0 --after 12 -o jsonl",
    short_help="Follow a session to its end.",
)
@click.argument("session_name", metavar="SESSION")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only events after this one.")
@timeout_option
@answer_option
@click.pass_obj
def session_attach(app: App, *, session_name: str, after: int, timeout: str | None, answer: bool) -> None:
    """Follow a session to its end; an ended one is shown as it was. Ctrl-C stops following, not the session."""
    style = _style(app, answer)
    wait_s = duration(timeout, "--timeout") if timeout else None
    ref = app.full(ref_of(SESSION, session_name))
    item = app.fetch(ref)
    last = last_seq(item)
    watch = Watch(app, ref.id, style, cancels=False)
    if item.get("status") == "ended":
        watch.replay(item, after, last)
    deadline = app.clock() + wait_s if wait_s is not None else None
    watch.to_end(after=after, settled=last, deadline=deadline)


@command(
    "cancel",
    "primectl session cancel sess-4be0c1d2e3f40516",
    "primectl session cancel sess-4be0",
    short_help="Cancel a session; returns when its command is dead.",
)
@click.argument("session_name", metavar="SESSION")
@click.pass_obj
def session_cancel(app: App, *, session_name: str) -> None:
    """Cancel a session and wait until it has ended and its command in the sandbox is dead."""
    ref = app.full(ref_of(SESSION, session_name))
    try:
        app.client.post(app.path(ref, "cancel"))
    except ApiError as exc:
        raise app.explained(exc, ref) from exc
    deadline = app.clock() + _PATIENCE_S
    while (item := app.fetch(ref)).get("status") != "ended":
        if app.clock() > deadline:
            raise CliError(f"session {ref.id} is still {item.get('status')} after 60 s", exit=Exit.WAITED)
        app.sleep(0.2)
    if not app.quiet:
        app.console.line(f"{ref} {item.get('ended_reason')}")


@command(
    "rerun",
    "primectl session rerun sess-4be0c1d2e3f40516",
    "primectl session rerun sess-4be0 --detach",
    short_help="Start a new session with the same input.",
)
@click.argument("session_name", metavar="SESSION")
@timeout_option
@detach_option
@answer_option
@click.pass_obj
def session_rerun(app: App, *, session_name: str, timeout: str | None, detach: bool, answer: bool) -> None:
    """Start a new session with the agent, workspace and instructions of another one, and follow it like `session run`."""
    style = _style(app, answer)
    wait_s = duration(timeout, "--timeout") if timeout else None
    ref = app.full(ref_of(SESSION, session_name))
    try:
        item = app.client.post(app.path(ref, "rerun")).object
    except ApiError as exc:
        raise app.explained(exc, ref) from exc
    _begun(app, item, style, detach=detach, wait_s=wait_s)


def _begun(app: App, item: dict[str, Any], style: str, *, detach: bool, wait_s: float | None) -> None:
    """Says that a session was started, and follows it unless it is to be left alone."""
    _announce(app, item)
    if detach:
        _started(app, item, style)
        return
    deadline = app.clock() + wait_s if wait_s is not None else None
    Watch(app, str(item.get("id")), style).to_end(after=0, settled=0, deadline=deadline)


def _style(app: App, answer: bool) -> str:
    style = app.format(STYLES, "text")
    if answer and style not in ("text", "answer"):
        raise UsageError(f"--answer and -o {style} contradict each other")
    return "answer" if answer else style


def _text(app: App, given: str) -> str:
    if given == "-":
        raw = app.console.inp.read()
    elif given.startswith("@"):
        try:
            raw = Path(given[1:]).read_bytes()
        except OSError as exc:
            raise UsageError(f"{given[1:]}: {(exc.strerror or 'cannot be read').lower()}") from exc
    else:
        raw = given.encode("utf-8", "surrogateescape")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise UsageError("the instructions are not UTF-8 text") from exc
    if not text.strip():
        raise UsageError("the instructions are empty", hint='-i "TEXT", -i @FILE, or -i - for standard input')
    return text


def _announce(app: App, item: dict[str, Any]) -> None:
    where = item.get("workspace_id") or "a throw-away workspace"
    app.console.info(f"session/{item.get('id')} started on {where} with {item.get('agent_id')}")


def _started(app: App, item: dict[str, Any], style: str) -> None:
    if style == "json":
        app.console.json({"kind": "session", **item})
    else:
        app.console.line(f"session/{item.get('id')}")


def _not_started(app: App, exc: ApiError, body: dict[str, Any]) -> CliError:
    """Which of the named things is missing: they were given as arguments, so each is a plain not-found."""
    named: tuple[tuple[str, Kind], ...] = (
        ("agent_id", AGENT),
        ("workspace_id", WORKSPACE),
        ("template_id", TEMPLATE),
    )
    refused = {f.field.removeprefix("body.") for f in exc.fields}
    for field, kind in named:
        if field in body and (exc.status == 404 or field in refused):
            ref = Ref(kind, str(body[field]))
            try:
                app.client.get(app.path(ref))
            except ApiError as missing:
                if missing.status == 404:
                    return app.not_found(ref, exc.request_id)
    known = exc.code in NOT_THERE and "workspace_id" in body
    return app.explained(exc, Ref(WORKSPACE, str(body["workspace_id"]))) if known else exc


ACTIONS = (session_run, session_send, session_attach, session_cancel, session_rerun, session_events, session_transcript)
for action in ACTIONS:
    session.add_command(action)
