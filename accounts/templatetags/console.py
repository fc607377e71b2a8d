"""Tags of the console: icons, chips, times, sizes, hostile text, links that keep the query."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any

import heroicons
from django import template
from django.http import QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from heroicons.templatetags.heroicons import heroicon_mini, heroicon_outline

from accounts.pages.form import dig
from accounts.pages.text import cut_lines, plain, visible

register = template.Library()
KIB = 1024
ICON: dict[str, object] = {"aria-hidden": "true", "class": "icon"}
MINUTE, HOUR, DAY = 60, 3600, 86400

# vocabulary: {word: (colour, icon)}; a word that is not here is grey.
WORDS: dict[str, dict[str, tuple[str, str]]] = {
    "phase": {
        "pending": ("blue", "clock"), "pulling": ("blue", "arrow-down-tray"), "starting": ("blue", "arrow-path"),
        "running": ("green", "play"), "stopped": ("grey", "stop"), "failed": ("red", "x-circle"),
        "lost": ("red", "question-mark-circle"), "deleting": ("grey", "trash"),
    },
    "health": {
        "healthy": ("green", "check-circle"), "degraded": ("amber", "exclamation-triangle"),
        "unreachable": ("red", "x-circle"), "unknown": ("grey", "question-mark-circle"),
    },
    "verdict": {
        "proven": ("green", "shield-check"), "degraded": ("amber", "shield-exclamation"),
        "failed": ("red", "shield-exclamation"), "unknown": ("grey", "question-mark-circle"),
        "not_isolated": ("red", "exclamation-triangle"),
    },
    "session": {
        "queued": ("blue", "clock"), "running": ("blue", "arrow-path"), "completed": ("green", "check-circle"),
        "failed": ("red", "x-circle"), "cancelled": ("grey", "no-symbol"), "timed_out": ("amber", "clock"),
        "limit": ("amber", "hand-raised"), "interrupted": ("amber", "bolt"),
    },
    "egress": {"deny_all": ("green", "lock-closed"), "allow_all": ("red", "globe-alt")},
    "worth": {
        "enforced": ("green", "check-circle"), "soft": ("amber", "exclamation-triangle"), "unavailable": ("red", "x-circle"),
    },
    "proof": {
        "holds": ("green", "check-circle"), "soft": ("amber", "exclamation-triangle"), "not applied": ("red", "x-circle"),
        "contradicted": ("red", "x-circle"), "not checked": ("grey", "question-mark-circle"),
    },
    "level": {"ok": ("green", "check-circle"), "warn": ("amber", "exclamation-triangle"), "fail": ("red", "x-circle")},
    "exec": {
        "running": ("blue", "arrow-path"), "exit": ("green", "check-circle"), "signal": ("grey", "bolt"),
        "cancelled": ("grey", "no-symbol"), "timeout": ("amber", "clock"), "lost": ("red", "question-mark-circle"),
        "oom": ("red", "x-circle"), "pids": ("red", "x-circle"), "disk": ("red", "x-circle"), "output_cap": ("red", "x-circle"),
    },
}  # fmt: skip


@register.simple_tag
@lru_cache(maxsize=512)
def icon(name: str, size: int = 16, style: str = "mini") -> SafeString:
    """An icon beside a word that says the same: hidden from readers."""
    draw = heroicon_outline if style == "outline" else heroicon_mini
    try:
        return mark_safe(draw(name, size=size, **ICON))  # noqa: S308 - a package's own drawing
    except heroicons.IconDoesNotExist:
        return mark_safe(draw("question-mark-circle", size=size, **ICON))  # noqa: S308


@register.simple_tag
def chip(vocabulary: str, word: str, title: str = "", label: str = "") -> SafeString:
    """A state as icon, word and colour."""
    word = str(word or "unknown")
    colour, name = WORDS.get(vocabulary, {}).get(word, ("grey", "question-mark-circle"))
    spin = " spin" if colour == "blue" and name == "arrow-path" else ""
    return format_html(
        '<span class="chip {}{}" title="{}">{}<span>{}</span></span>',
        colour, spin, visible(title), icon(name, 14), plain(label or word.replace("_", " ")),
    )  # fmt: skip


@register.filter
def hostile(value: object) -> SafeString:
    """Text of a sandbox, a model or an engine: escaped, isolated from the direction of its neighbours."""
    return format_html("<bdi>{}</bdi>", plain(value))


@register.filter
def filename(value: object) -> SafeString:
    """The name of a file: there a line end and a tab are marks, too, or two names would look the same."""
    return hostile(str(value).replace("\n", "\u240a").replace("\t", "\u2409"))


@register.filter
def block(value: object) -> SafeString:
    """The same for a <pre>: endless lines are cut."""
    return plain(cut_lines(str(value)))


@register.filter
def items(lines: Iterable[SafeString], numbered: int) -> SafeString:
    """Lines that are HTML as items of a list, with the ids that links lead to; a loop in a template takes thirty times as long."""
    found = (f'<li id="L{n}">{line}</li>' if numbered else f"<li>{line}</li>" for n, line in enumerate(lines, 1))
    return mark_safe("".join(found))  # noqa: S308 - of safe lines


@register.filter
def ticked(text: str) -> SafeString:
    """A sentence of the API's document: what stands between backticks there is code here."""
    parts = enumerate(str(text).split("`"))
    return format_html_join(
        "", "{}", ((format_html("<code>{}</code>", part) if at % 2 else part,) for at, part in parts)
    )


@register.filter
def moment(value: Any) -> SafeString | str:
    """`<time>` with the age as text; the page's script keeps it fresh."""
    when = value if isinstance(value, datetime) else parse_datetime(str(value)) if value else None
    if when is None:
        return ""
    local = timezone.localtime(when) if timezone.is_aware(when) else when
    utc = when.astimezone(timezone.UTC) if hasattr(timezone, "UTC") else when
    return format_html(
        '<time datetime="{}" title="{} · {} UTC" data-age>{}</time>',
        when.isoformat(), f"{local:%Y-%m-%d %H:%M:%S %Z}", f"{utc:%Y-%m-%d %H:%M:%S}", ago(when),
    )  # fmt: skip


@register.filter
def since(reason: object, value: Any) -> str:
    """The title of a state's chip: why it is so, and since when."""
    return _stamped(reason, "since", value)


@register.filter
def checked(reason: object, value: Any) -> str:
    return _stamped(reason, "checked", value)


def _stamped(reason: object, word: str, value: Any) -> str:
    when = value if isinstance(value, datetime) else parse_datetime(str(value)) if value else None
    at = f"{word} {timezone.localtime(when):%Y-%m-%d %H:%M:%S %Z}" if when is not None else ""
    return " · ".join(part for part in (str(reason or ""), at) if part)


def ago(when: datetime) -> str:
    seconds = (timezone.now() - when).total_seconds()
    future, seconds = seconds < -1, abs(seconds)
    text = (
        f"{int(seconds)} s" if seconds < MINUTE
        else f"{int(seconds // MINUTE)} min" if seconds < HOUR
        else f"{int(seconds // HOUR)} h" if seconds < 2 * DAY
        else f"{int(seconds // DAY)} d"
    )  # fmt: skip
    return f"in {text}" if future else f"{text} ago"


@register.filter
def size(value: Any) -> str:
    """Bytes for people, in binary units."""
    if not isinstance(value, int | float):
        return ""
    number, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(number) >= KIB and len(units) > 1:
        number, units = number / KIB, units[1:]
    return f"{number:.0f} {units[0]}" if units[0] == "B" or number == int(number) else f"{number:.1f} {units[0]}"


@register.filter
def took(value: Any) -> str:
    """Seconds for people."""
    if not isinstance(value, int | float):
        return ""
    if value < MINUTE:
        return f"{value:.1f} s"
    return f"{int(value // MINUTE)} min {int(value % MINUTE)} s" if value < HOUR else f"{value / HOUR:.1f} h"


@register.filter
def at(value: Any, path: str) -> Any:
    return dig(value, path)


@register.filter
def words(value: object) -> str:
    return str(value).replace("_", " ")


@register.filter
def pretty(value: Any) -> str:
    """A value of JSON as text."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


@register.filter
def kind_of(value: Any) -> str:
    return type(value).__name__


@register.simple_tag(takes_context=True)
def query(context: template.Context, **changes: Any) -> SafeString:
    """The page's query with changes; an empty value leaves a name out."""
    asked: QueryDict = context["request"].GET.copy()
    for name, value in changes.items():
        if value in ("", None):
            asked.pop(name, None)
        else:
            asked[name] = str(value)
    return mark_safe("?" + asked.urlencode().replace("&", "&amp;")) if asked else mark_safe("?")  # noqa: S308 - percent-encoded
