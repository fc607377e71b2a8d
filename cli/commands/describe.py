"""`primectl describe`: one object, what belongs to it, and what to do next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from cli import present, tables
from cli.app import PLAIN, App
from cli.command import command
from cli.commands.wait import boot_lines, reason_text
from cli.errors import UsageError
from cli.invoked import word
from cli.kinds import Ref, refs_of
from cli.text import age, dig, mapping, moment, seconds

Item = dict[str, Any]
_INDENT = 2  # of what stands below a heading


@command(
    "describe",
    "primectl describe workspace ws-1a2b3c4d5e6f7081",
    "primectl describe workspace_provider docker-local",
    short_help="Show one object with what belongs to it and what to do next.",
)
@click.argument("words", nargs=-1, required=True, metavar="KIND ID")
@click.pass_obj
def describe(app: App, *, words: tuple[str, ...]) -> None:
    """Show everything about one object, and two commands that may come next."""
    style = app.format((*PLAIN, "text"), "text")
    _, refs = refs_of(words)
    if len(refs) != 1:
        raise UsageError("describe takes one id", hint="primectl describe KIND ID")
    ref = app.full(refs[0])
    item = app.fetch(ref)
    if style != "text":
        present.objects(app, ref.kind, [item], style, one=True)
        return
    lines = [str(ref), ""]
    parts = present.manifest(ref.kind, item)
    lines += ["Spec", *_spec(ref, parts["spec"])]
    lines += ["", "Status", *_status(ref, parts["status"])]
    for title, section in SECTIONS.get(ref.kind.name, ()):
        body = section(app, item)
        if body:
            lines += ["", title, *(f"  {line}" for line in body)]
    for line in lines:
        for part in tables.wrapped(app.console, line):
            app.console.line(part)
    # Command lines are copied: they stay in one piece.
    for line in ("", "Next steps", *(f"  {line}" for line in _next(ref, item))):
        app.console.line(line)


_UNBROKEN = 10**6  # lines are wrapped where they are shown, and on a pipe not at all


def _spec(ref: Ref, spec: Item) -> list[str]:
    return present.to_yaml({"kind": ref.kind.name, "spec": spec}, ref.kind, _UNBROKEN).splitlines()[2:]


# Shown by the sections below, or too long for a status line.
_ELSEWHERE = {
    "confinement",
    "applied",
    "phases",
    "spec",
    "agent_spec",
    "status",
    "answer",
    "boot_lines",
    "phase_reason",
    "phase_detail",
    "health",
    "reasons",
    "engine",
    "enforces",
    "limit_reasons",
}


def _status(ref: Ref, status: Item) -> list[str]:
    plain = {key: value for key, value in status.items() if key not in _ELSEWHERE}
    if ref.kind.name == "session":
        plain = {"status": status.get("status"), **plain}
    if not plain:
        return ["  (nothing yet)"]
    return [f"  {line}" for line in present.to_yaml(plain, None, _UNBROKEN).splitlines()]


def _engine(app: App, item: Item) -> list[str]:
    status = item.get("status")
    if not isinstance(status, dict):
        return []
    rows = [["FACT", "VALUE"], ["health", str(status.get("health", "unknown"))]]
    rows += [[str(key), _flat(value)] for key, value in mapping(status.get("engine")).items()]
    # Sentences: wrapped below the table, not cut in it.
    reasons = [f"reason: {reason}" for reason in status.get("reasons") or []]
    return [*tables.layout(app.console, rows, indent=_INDENT), *reasons]


def _enforces(app: App, item: Item) -> list[str]:
    enforces = dig(item, "status.enforces")
    if not isinstance(enforces, dict):
        return []
    rows = [["LIMIT", "HELD"], *([str(k), _flat(v)] for k, v in enforces.items())]
    reasons = mapping(dig(item, "status.limit_reasons"))
    return [
        *tables.layout(app.console, rows, indent=_INDENT),
        *(f"{name}: {_flat(why)}" for name, why in reasons.items()),
    ]


def _phases(app: App, item: Item) -> list[str]:
    phases = [p for p in item.get("phases") or [] if isinstance(p, dict)]
    rows = [["PHASE", "TOOK"]]
    for number, phase in enumerate(phases):
        start = moment(phase.get("at"))
        end = moment(phases[number + 1].get("at")) if number + 1 < len(phases) else None
        took = seconds((end - start).total_seconds()) if start and end else f"since {age(phase.get('at'))}"
        rows.append([str(phase.get("phase")), took])
    lines = tables.layout(app.console, rows, indent=_INDENT) if phases else []
    if reason_text(item):
        lines.append(f"reason: {reason_text(item)}")
    return lines + [f"boot: {line}" for line in boot_lines(item)]


def _confinement(app: App, item: Item) -> list[str]:
    return present.confinement(app.console, item, indent=_INDENT)


def _totals(app: App, item: Item) -> list[str]:
    usage = mapping(item.get("usage"))
    rows = [["TOTAL", "VALUE"]]
    rows += [[key, _flat(item.get(key))] for key in ("turns", "tool_calls", "last_seq") if item.get(key) is not None]
    rows += [[str(key), _flat(value)] for key, value in usage.items() if value is not None]
    lines = tables.layout(app.console, rows, indent=_INDENT) if len(rows) > 1 else []
    detail = item.get("ended_detail")
    if isinstance(detail, dict) and detail:
        lines.append(f"ended: {item.get('ended_reason')}: {detail.get('message') or detail.get('code') or ''}")
        if detail.get("hint"):
            lines.append(f"hint: {detail['hint']}")
    return lines


def _answer(app: App, item: Item) -> list[str]:
    return str(item.get("answer") or "").splitlines()


def _flat(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_flat, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


SECTIONS: dict[str, tuple[tuple[str, Callable[[App, Item], list[str]]], ...]] = {
    "workspace_provider": (("Engine", _engine), ("Enforces", _enforces)),
    "llm_provider": (("Health", _engine),),
    "workspace": (("Phases", _phases), ("Confinement", _confinement)),
    "session": (("Totals", _totals), ("Answer", _answer)),
}


def _next(ref: Ref, item: Item) -> tuple[str, str]:
    ref = Ref(ref.kind, word(ref.id))
    match ref.kind.name:
        case "workspace_provider":
            return f"primectl provider check {ref.id}", "primectl create -f TEMPLATE.yaml"
        case "workspace_template":
            return f"primectl template check {ref.id}", f"primectl create workspace --set template_id={ref.id}"
        case "llm_provider":
            return f"primectl llm-provider test {ref.id}", "primectl create -f AGENT.yaml"
        case "agent":
            return f"primectl session run WORKSPACE --agent {ref.id} -i TEXT", f"primectl get {ref} -o yaml"
        case "session" if item.get("status") == "ended":
            return f'primectl session send {ref.id} -i "go on"', f"primectl session events {ref.id}"
        case "session":
            return f"primectl session attach {ref.id}", f"primectl session cancel {ref.id}"
    if item.get("phase") == "running":
        return f"primectl workspace exec {ref.id} -- python3 -V", f"primectl workspace files ls {ref.id}"
    if item.get("phase") in ("failed", "stopped", "lost"):
        return f"primectl workspace start {ref.id}", f"primectl delete {ref}"
    return f"primectl wait {ref} --for=phase=running", f"primectl delete {ref}"
