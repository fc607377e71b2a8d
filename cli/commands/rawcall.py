"""`primectl api`: any route of the API with this program's address, token, retries and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import click

from cli.app import App
from cli.assign import put_path, split_assignment
from cli.client import PAGE, new_key, not_primer
from cli.command import command
from cli.commands.get import pairs
from cli.errors import ApiError, UsageError
from cli.execution import Screen
from cli.transfer import pieces_of
from cli.yamldoc import scalar

if TYPE_CHECKING:
    import requests

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_OURS = {"authorization", "host", "content-length", "transfer-encoding", "connection", "cookie"}
_SILENCE_S = 60.0


@command(
    "api",
    "primectl api GET /v1/me",
    "primectl api GET /v1/sessions -f status=ended --paginate",
    "primectl api POST /v1/workspaces -f template_id=default -f labels.team=red",
    "primectl api PUT /v1/agents/code-runner --input agent.json",
    short_help="Call any route of the API.",
)
@click.argument("method")
@click.argument("path")
@click.option("-f", "--field", "fields", multiple=True, metavar="K=V", help="Of the query (GET, DELETE) or the body.")
@click.option("--input", "source", metavar="FILE|-", help="The body, as it is.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header; repeatable.")
@click.option("--paginate", is_flag=True, help="GET of a list: follow the cursors, print all items as one list.")
@click.option("--raw", is_flag=True, help="On a terminal: the bytes as they are.")
@click.pass_obj
def api(
    app: App,
    *,
    method: str,
    path: str,
    fields: tuple[str, ...],
    source: str | None,
    headers: tuple[str, ...],
    paginate: bool,
    raw: bool,
) -> None:
    """Call a route and print the body of its answer. Failures are told, and exit, as everywhere else.

    Fields of a body are typed like YAML (5, true, null, text) and may be paths: labels.team=red, tools[+]=x.
    """
    method = method.upper()
    if method not in METHODS:
        raise UsageError(f"{method} is not a method of the API", hint=", ".join(METHODS))
    if source is not None and fields:
        raise UsageError("-f and --input contradict each other: one of them makes the body")
    route, params = _route(path)
    body: Any = None
    if method in ("GET", "DELETE"):
        params |= pairs("-f", fields)
        if source is not None:
            raise UsageError(f"a {method} has no body", hint="-f K=V goes into its query")
    else:
        body = _input(app, source) if source is not None else _body(fields)
    sent = _headers(headers, isinstance(body, bytes))
    if method == "POST":
        sent.setdefault("Idempotency-Key", new_key())
    if paginate:
        _all_pages(app, method, route, params)
        return
    # A PATCH is not sent a second time: twice is not the same as once.
    try:
        response = app.client.open(
            method, route, params=params, body=body, headers=sent, silence_s=_SILENCE_S, retry=method != "PATCH"
        )
    except ApiError as exc:
        if method == "DELETE" and exc.again and exc.status == 404:  # the first one, whose answer was lost, did it
            app.client.note_assumed()
            return
        raise
    with response:
        _print(app, response, raw=raw)


def _route(path: str) -> tuple[str, dict[str, Any]]:
    """Route and query of a path; raises UsageError for an address: the token goes to the context's server alone."""
    parts = urlsplit(path)
    if parts.scheme or parts.netloc or path.startswith("//"):
        raise UsageError(f"{path}: write the path only, like /v1/me", hint="another server: --server URL")
    if parts.fragment or any(ord(c) <= 0x20 or ord(c) == 0x7F for c in path):
        raise UsageError(f"{path}: is not a path of the API")
    query: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        query.setdefault(name, []).append(value)
    return "/" + parts.path.lstrip("/"), query


def _body(fields: tuple[str, ...]) -> dict[str, Any] | None:
    if not fields:
        return None
    body: dict[str, Any] = {}
    for text in fields:
        steps, value = split_assignment("-f", text)
        put_path(body, steps, scalar(value), text)
    return body


def _input(app: App, source: str) -> bytes:
    if source == "-":
        return app.console.inp.read()
    try:
        return Path(source).read_bytes()
    except OSError as exc:
        raise UsageError(f"{source}: {(exc.strerror or 'cannot be read').lower()}") from exc


def _headers(given: tuple[str, ...], has_input: bool) -> dict[str, str]:
    headers = {"Content-Type": "application/json"} if has_input else {}
    for text in given:
        name, sep, value = text.partition(":")
        if not sep or not name.strip() or not (name + value).isascii() or not (name + value).isprintable():
            raise UsageError(f"-H {text}: write NAME:VALUE")
        if name.strip().lower() in _OURS:
            raise UsageError(f"-H {name.strip()}: is set by primectl alone")
        name = next((known for known in headers if known.lower() == name.strip().lower()), name.strip())
        headers[name] = value.strip()
    return headers


def _print(app: App, response: requests.Response, *, raw: bool) -> None:
    console, kind = app.console, response.headers.get("Content-Type", "")
    if console.out_tty and "json" in kind and "ndjson" not in kind:
        console.json(app.client.body_of(response))
        return
    screen = Screen(console, raw=raw)
    for piece in pieces_of(response):
        screen.write("stdout", piece)
    screen.close()
    console.fresh_line()


def _all_pages(app: App, method: str, route: str, params: dict[str, Any]) -> None:
    if method != "GET":
        raise UsageError("--paginate is for GET")
    items: list[Any] = []
    cursor: Any = params.pop("cursor", None)
    params.setdefault("limit", PAGE)
    while True:
        page = app.client.get(route, **{**params, "cursor": cursor}).object
        found, following = page.get("items"), page.get("next_cursor")
        if not isinstance(found, list):
            raise not_primer("a list was due")
        items += found
        if not following or not found or following == cursor:
            break
        cursor = following
    text = json.dumps({"items": items, "next_cursor": None, "total": len(items)}, ensure_ascii=False)
    if app.console.out_tty:
        app.console.json(json.loads(text))
    else:
        app.console.text(text + "\n")
