"""`primectl provider check`, `template check`, `llm-provider test`: measured now, exit 1 when it does not hold."""

from __future__ import annotations

from typing import Any

import click

from cli import present, tables
from cli.app import App
from cli.command import Group, command
from cli.errors import ApiError, CliError, Done, Exit
from cli.kinds import LLM_PROVIDER, PROVIDER, TEMPLATE, Kind, Ref, ref_of
from cli.text import dig, image_hint

provider = Group(
    "provider",
    help="Check workspace providers.",
    short_help="Check workspace providers.",
    examples=("primectl provider check docker-local", "primectl provider check docker-local -o json"),
)
template = Group(
    "template",
    help="Check workspace templates.",
    short_help="Check workspace templates.",
    examples=("primectl template check code-sandbox", "primectl template check code-sandbox -o json"),
)
llm_provider = Group(
    "llm-provider",
    help="Test LLM providers.",
    short_help="Test LLM providers.",
    examples=("primectl llm-provider test scripted", "primectl llm-provider test anthropic -o json"),
)


def _checked(app: App, kind: Kind, name: str, verb: str) -> tuple[Ref, dict[str, Any]]:
    ref = ref_of(kind, name)
    try:
        return ref, app.client.post(app.path(ref, verb)).object
    except ApiError as exc:
        raise app.explained(exc, ref) from exc


@command(
    "check",
    "primectl provider check docker-local",
    "primectl provider check docker-local -o json",
    short_help="Ask the engine now.",
)
@click.argument("name", metavar="PROVIDER")
@click.pass_obj
def provider_check(app: App, *, name: str) -> None:
    """Ask the engine now: is it there, what is it, which limits does it hold. Exit 1 unless it is usable."""
    style = app.format(("json",), "text")
    ref, answer = _checked(app, PROVIDER, name, "check")
    status = answer.get("status", answer)
    if style == "json":
        app.console.json({"kind": PROVIDER.name, **answer})
    else:
        app.console.line(present.engine_line(ref.id, status))
        rows = [["FACT", "VALUE"], *_facts(dig(status, "engine", {}))]
        rows += _limits(dig(status, "enforces", {}), dig(status, "limit_reasons", {}))
        if dig(status, "health") == "healthy":  # of any other the line above says why
            rows += _lines("reason", dig(status, "reasons"))
        if len(rows) > 1:
            tables.write(app.console, rows, fold=True)
    raise Done(Exit.OK if dig(status, "health") in ("healthy", "degraded") else Exit.FAILED)


def _pairs(value: Any) -> list[tuple[str, Any]]:
    return [(str(k), v) for k, v in value.items()] if isinstance(value, dict) else []


def _limits(held: Any, reasons: Any) -> list[list[str]]:
    why = dict(_pairs(reasons))
    return [[f"limit {k}", f"{v}: {why[k]}" if why.get(k) else str(v)] for k, v in _pairs(held)]


def _lines(title: str, found: Any) -> list[list[str]]:
    return [[title, str(one)] for one in found] if isinstance(found, list) else []


def _facts(value: Any) -> list[list[str]]:
    return [[k, ", ".join(map(str, v)) if isinstance(v, list) else str(v)] for k, v in _pairs(value) if v is not None]


@command(
    "check",
    "primectl template check code-sandbox",
    "primectl template check code-sandbox -o json",
    short_help="Is the image there, do the limits hold.",
)
@click.argument("name", metavar="TEMPLATE")
@click.pass_obj
def template_check(app: App, *, name: str) -> None:
    """Is the image there, with which digest, and is each limit enforced, soft or unavailable. Exit 1 without image."""
    style = app.format(("json",), "text")
    ref, answer = _checked(app, TEMPLATE, name, "check")
    there = present.image_present(answer)
    if style == "json":
        app.console.json(answer)
    else:
        word = {True: "present", False: "missing", None: "unknown"}[there]
        app.console.line(f"{ref.id}: image {word}")
        rows = [
            ["FACT", "VALUE"],
            *_facts({"digest": answer.get("image_digest") or None, "detail": answer.get("detail")}),
        ]
        rows += _limits(answer.get("limits"), answer.get("reasons"))
        rows += _lines("problem", answer.get("problems"))
        tables.write(app.console, rows, fold=True)
    if there is False:
        image = str(dig(app.fetch(ref), "backend.image", ""))
        raise CliError(f"the image of {ref.id} is not on the engine", hint=image_hint(image))


@command(
    "test",
    "primectl llm-provider test scripted",
    "primectl llm-provider test anthropic -o json",
    short_help="Make one tiny call to the model.",
)
@click.argument("name", metavar="LLM-PROVIDER")
@click.pass_obj
def llm_test(app: App, *, name: str) -> None:
    """Make one tiny call to the model and say how long it took, or why it failed."""
    style = app.format(("json",), "text")
    _, answer = _checked(app, LLM_PROVIDER, name, "test")
    if style == "json":
        app.console.json(answer)
    if answer.get("ok") is False:
        message = str(answer.get("message") or answer.get("detail") or "the model did not answer")
        raise CliError(message, hint=str(answer.get("hint") or ""))
    if style != "json":
        took = answer.get("duration_ms")
        parts = ["ok"]
        parts += [f"{took:.0f} ms"] if isinstance(took, int | float) else []
        parts += [str(answer["model"])] if answer.get("model") else []
        parts += [f"request id {answer['request_id']}"] if answer.get("request_id") else []
        app.console.line(" ".join(parts))


@command(
    "models",
    "primectl llm-provider models anthropic",
    "primectl llm-provider models scripted -o json",
    short_help="List the models that it offers.",
)
@click.argument("name", metavar="LLM-PROVIDER")
@click.pass_obj
def llm_models(app: App, *, name: str) -> None:
    """List the names of the models that an LLM provider offers, one a line."""
    style = app.format(("json",), "text")
    ref = ref_of(LLM_PROVIDER, name)
    try:
        answer = app.client.get(app.path(ref, "models"))
    except ApiError as exc:
        raise app.explained(exc, ref) from exc
    models = answer.object.get("items")
    if style == "json":
        app.console.json(answer.object)
    elif isinstance(models, list) and models:
        for model in models:
            app.console.line(str(model))
    else:
        app.console.info("No models found.")


provider.add_command(provider_check)
template.add_command(template_check)
llm_provider.add_command(llm_test)
llm_provider.add_command(llm_models)
