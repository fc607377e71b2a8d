"""`primectl session events` and `transcript`: what a session did, also long after its workspace is gone."""

from __future__ import annotations

import click

from cli.app import App
from cli.command import command
from cli.commands.following import last_seq, result_line, stored
from cli.errors import ApiError, UsageError
from cli.execution import Screen
from cli.kinds import SESSION, ref_of
from cli.landing import Landing, save
from cli.stream import Follower, merged
from cli.text import count_bytes
from cli.transfer import pieces_of

FORMATS = ("md", "jsonl", "html")
_SILENCE_S = 60.0


@command(
    "events",
    "primectl session events sess-4be0c1d2e3f40516",
    "primectl session events sess-4be0 -f -o jsonl",
    short_help="Print the events of a session.",
)
@click.argument("session_name", metavar="SESSION")
@click.option("-f", "--follow", is_flag=True, help="Go on until the session ends.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only events after this one.")
@click.pass_obj
def session_events(app: App, *, session_name: str, follow: bool, after: int) -> None:
    """Print the stored events: a line for each, or each as JSON with -o jsonl."""
    style = app.format(("text", "json", "jsonl"), "text")
    ref = app.full(ref_of(SESSION, session_name))
    item = app.fetch(ref)
    last = last_seq(item)
    if follow and item.get("status") != "ended":
        events = iter(Follower(app, ref.id, after=after, settled=last))
    else:
        events = stored(app, ref.id, after, last)
    if style == "json":
        app.console.json({"kind": "list", "items": list(merged(events))})
        return
    for event in merged(events):
        if style == "jsonl":
            app.console.json(event, indent=None)
        else:
            app.console.line(
                f"{event.get('seq')}  {event.get('ts')}  {event.get('kind')}  {result_line(event)}".rstrip()
            )


@command(
    "transcript",
    "primectl session transcript sess-4be0c1d2e3f40516",
    "primectl session transcript sess-4be0 --format html -O session.html",
    short_help="Print or save the whole transcript.",
)
@click.argument("session_name", metavar="SESSION")
@click.option("--format", "form", type=click.Choice(FORMATS), default="md", show_default=True, help="Its form.")
@click.option("-O", "--output-file", "target", metavar="FILE|-", help="Save it there instead of printing it.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.pass_obj
def session_transcript(app: App, *, session_name: str, form: str, target: str | None, force: bool) -> None:
    """Print the transcript as Markdown, as one event a line, or as a page of its own; also after the workspace is gone."""
    ref = app.full(ref_of(SESSION, session_name))
    if app.settings.output.source == "--output":
        raise UsageError("-o is not for transcripts", hint="the form: --format md, jsonl or html; a file: -O FILE")
    try:
        response = app.client.open("GET", app.path(ref, "transcript"), params={"format": form}, silence_s=_SILENCE_S)
    except ApiError as exc:
        raise app.explained(exc, ref) from exc
    with response:
        if target not in (None, "-"):
            written = save(pieces_of(response), str(target), Landing(force=force))
            app.console.info(f"saved {target} ({count_bytes(written)})")
            return
        screen = Screen(app.console)
        for piece in pieces_of(response):
            screen.write("stdout", piece)
        screen.close()
        app.console.fresh_line()
