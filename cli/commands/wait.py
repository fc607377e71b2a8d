"""`primectl wait`, and the waiting that other commands do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import click

from cli import jsonpath
from cli.app import App
from cli.command import command
from cli.errors import ApiError, CliError, Exit, UsageError
from cli.invoked import word
from cli.kinds import Ref, refs_of
from cli.text import dig, duration, image_hint

_STEP_S = 0.25
_LONGEST_STEP_S = 2.0
# A goal on a field, and the states of that field from which it cannot be reached any more.
_HOPELESS: dict[tuple[str, str | None], set[str]] = {
    ("phase", "running"): {"failed", "lost", "deleting"},
    ("phase", "stopped"): {"failed", "lost", "deleting"},
    ("status", "running"): {"ended"},
}
_FIELD = {"phase": "phase", "status": "status", "health": "status.health"}
_STATES = {
    "phase": ("pending", "pulling", "starting", "running", "stopped", "failed", "lost", "deleting"),
    "status": ("queued", "running", "ended"),
    "health": ("healthy", "degraded", "unreachable", "unknown"),
}
_HAVE = {"phase": ("workspace",), "status": ("session",), "health": ("workspace_provider", "llm_provider")}


@command(
    "wait",
    "primectl wait workspace/ws-1a2b3c4d5e6f7081 --for=phase=running",
    "primectl wait session/sess-4be0c1d2e3f40516 --for=status=ended --timeout=10m",
    "primectl wait workspace ws-1a2b3c4d5e6f7081 --for=delete",
    short_help="Wait until objects are in a state.",
)
@click.argument("words", nargs=-1, required=True, metavar="KIND/ID…")
@click.option(
    "--for",
    "goal",
    required=True,
    metavar="GOAL",
    help="phase=running, status=ended, health=healthy, delete, or jsonpath='{.path}'=value.",
)
@click.option(
    "--timeout", default="120s", show_default=True, metavar="DURATION", help="How long at most, all together."
)
@click.pass_obj
def wait(app: App, *, words: tuple[str, ...], goal: str, timeout: str) -> None:
    """Wait until every named object is in the wanted state."""
    _, refs = refs_of(words)
    if not refs:
        raise UsageError("an id is missing", hint="primectl wait KIND/ID --for=…")
    aim = parsed_goal(goal)
    if kinds := _HAVE.get(goal.partition("=")[0]):
        for ref in refs:
            if ref.kind.name not in kinds:
                raise UsageError(f"--for={goal}: {ref} has none", hint=f"this is for a {' or '.join(kinds)}")
    deadline = app.clock() + duration(timeout, "--timeout")
    for ref in [app.full(ref) for ref in refs]:
        if aim is None:
            until_gone(app, ref, deadline, timeout)
            word = "deleted"
        else:
            until_state(app, ref, aim, deadline=deadline, limit=timeout)
            word = aim.words
        if not app.quiet:
            app.console.line(f"{ref} {word}")


@dataclass(frozen=True)
class Goal:
    """A path of the object and the text it must have; without a text, anything but null will do."""

    field: str
    path: jsonpath.Path
    wanted: str | None

    def state(self, item: dict[str, Any]) -> str:
        """What the path shows now; several values have a space between them, nothing there is an empty text."""
        return " ".join(jsonpath.shown(value) for value in self.path.find(item) if value is not None)

    @property
    def words(self) -> str:
        if self.field in _FIELD.values():
            return str(self.wanted)
        return f"{self.field}={self.wanted}" if self.wanted is not None else f"has {self.field}"


def goal_of(field: str, wanted: str) -> Goal:
    """The goal of a plain field like `phase`."""
    return Goal(field, jsonpath.path(field), wanted)


def parsed_goal(text: str) -> Goal | None:
    """`phase=running` and its like; None for `delete`."""
    if text == "delete":
        return None
    match = re.fullmatch(r"jsonpath=(\{.*?\}|[^{}=]+?)(?:=(.*))?", text, re.S)
    if match:
        bare = match[1].strip("{}").strip()
        return Goal(bare.removeprefix("."), jsonpath.path(match[1]), _bare(match[2]))
    name, sep, value = text.partition("=")
    if not sep or name not in _FIELD or not value:
        raise UsageError(
            f"--for={text}: not a goal",
            hint="phase=running, status=ended, health=healthy, delete or jsonpath='{.a.b}'=value",
        )
    if value not in _STATES[name]:
        raise UsageError(f"--for={text}: there is no {name} {value}", hint=f"it is one of {', '.join(_STATES[name])}")
    return goal_of(_FIELD[name], value)


def _bare(value: str | None) -> str | None:
    """A value in quotes without them, as kubectl takes it."""
    quoted = value is not None and len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted and value is not None else value


def until_phase(app: App, ref: Ref, phase: str, limit_s: float, *, temporary: bool = False) -> dict[str, Any]:
    """The workspace once it is in the phase; raises with exit 1 when it cannot get there, 7 when time is up.

    A `temporary` workspace is about to be removed: no command line that names it is worth a hint.
    """
    deadline = app.clock() + limit_s
    goal = goal_of("phase", phase)
    return until_state(app, ref, goal, deadline=deadline, limit=f"{limit_s:g} s", temporary=temporary)


def until_state(
    app: App, ref: Ref, goal: Goal, *, deadline: float, limit: str, temporary: bool = False
) -> dict[str, Any]:
    """The object once it is as the goal says. `deadline` is on the app's clock, `limit` the same for people."""
    step = _STEP_S / 2
    while True:
        with app.client.patience.until(deadline):
            item = app.fetch(ref)
        state = goal.state(item)
        if state == goal.wanted or (goal.wanted is None and state):
            return item
        if state in _HOPELESS.get((goal.field, goal.wanted), ()):
            raise CliError(*hopeless_lines(ref, item, state), hint=_hopeless_hint(ref, item, temporary))
        # The shown value may be a whole object: a line for people needs its beginning.
        aim = f'"{goal.wanted}"' if goal.wanted is not None else f"anything at {goal.field}"
        step = _sleep(app, deadline, step, f'{ref} is "{state[:200]}" after {limit}, not {aim}')


def hopeless_lines(ref: Ref, item: dict[str, Any], state: Any) -> list[str]:
    """Why a workspace cannot get where it should: its reason and the last lines of its boot."""
    reason = reason_text(item)
    first = f"{ref.kind.name} {ref.id} {state}" + (f": {reason}" if reason else "")
    return [first, *(f"boot: {line}" for line in boot_lines(item))]


def reason_text(item: dict[str, Any]) -> str:
    """Why a workspace is in its phase: the sentence, or the stable word where there is none."""
    return str(item.get("phase_detail") or item.get("phase_reason") or "").removesuffix(".")


def boot_lines(item: dict[str, Any]) -> list[str]:
    """The last lines that the sandbox wrote while it started."""
    lines = item.get("boot_lines")
    return [str(line) for line in lines[-10:]] if isinstance(lines, list) else []


def _hopeless_hint(ref: Ref, item: dict[str, Any], temporary: bool) -> str:
    if item.get("phase_reason") == "image_not_found":
        return image_hint(str(dig(item, "spec.backend.image") or item.get("phase_detail")))
    return "" if temporary else f"primectl describe {word(str(ref))}"


def until_gone(app: App, ref: Ref, deadline: float, limit: str) -> None:
    """Returns once the server answers 404."""
    step = _STEP_S / 5
    while True:
        try:
            with app.client.patience.until(deadline):
                app.client.get(app.path(ref))
        except ApiError as exc:
            if exc.status == 404:
                return
            raise
        step = _sleep(app, deadline, step, f"{ref} is still there after {limit}")


def _sleep(app: App, deadline: float, step: float, late: str) -> float:
    left = deadline - app.clock()
    if left <= 0:
        raise CliError(late, exit=Exit.WAITED)
    app.sleep(min(step, left))
    return min(_LONGEST_STEP_S, step * 1.4)
