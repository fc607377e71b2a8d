"""Tables: the columns of each kind, and lines that fit a terminal but are whole on a pipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cli.output import Console, encoded, inert
from cli.text import age, dig, local_time, seconds, size

Item = dict[str, Any]
Cell = Callable[[Item], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `time` cells are an age in a table and a local time in the wide one."""

    title: str
    value: Cell
    time: bool = False


def at(path: str) -> Cell:
    return lambda item: dig(item, path, "")


def _col(title: str, path: str) -> Column:
    return Column(title, at(path))


def _bytes(path: str) -> Cell:
    def cell(item: Item) -> str:
        value = dig(item, path)
        return size(value) if isinstance(value, int | float) else str(value or "")

    return cell


def _took(item: Item) -> str:
    from cli.text import moment

    start, end = moment(item.get("started_at")), moment(item.get("ended_at"))
    return seconds((end - start).total_seconds()) if start and end else ""


def _verdict(item: Item) -> Any:
    value = item.get("confinement")
    return value if isinstance(value, str) else dig(item, "confinement.verdict", "")


def _key(item: Item) -> str:
    if dig(item, "config.api_key.set"):
        return f"****{str(dig(item, 'config.api_key.last4', ''))[:4]}"
    variable = dig(item, "config.api_key_env")
    return f"env {variable}" if variable else ""


def _either(*paths: str) -> Cell:
    return lambda item: next((v for v in (dig(item, path) for path in paths) if v not in (None, "")), "")


def _tools(item: Item) -> str:
    tools = item.get("tools")
    return ", ".join(map(str, tools)) if isinstance(tools, list) else ""


AGE = Column("AGE", at("created_at"), time=True)
OWNER = _col("OWNER", "owner")
# Cells that may be cut to so many columns and no further (others: to their title, or six): five hex digits of an id are
# still an id that every command takes, and a status that is cut says nothing.
_LEAST = {"WORKSPACE": 9, "STATUS": 7, "ENDED": 9, "PHASE": 8, "HEALTH": 11, "CONFINEMENT": 11}
# kind: (the columns, those that -o wide adds)
COLUMNS: dict[str, tuple[tuple[Column, ...], tuple[Column, ...]]] = {
    "workspace_provider": (
        (
            _col("ID", "id"),
            _col("PROVIDER", "provider"),
            Column("RUNTIME", _either("config.runtime", "runtime")),
            _col("HEALTH", "status.health"),
            Column("CHECKED", at("status.checked_at"), time=True),
            AGE,
        ),
        (
            _col("CONNECTION", "config.connection.kind"),
            _col("REACHABILITY", "config.reachability.kind"),
            _col("ENGINE", "status.engine.version"),
            *(_col(name.upper(), f"status.enforces.{name}") for name in ("cpu", "memory", "pids", "disk", "egress")),
        ),
    ),
    "workspace_template": (
        (
            _col("ID", "id"),
            _col("PROVIDER", "provider_id"),
            _col("KIND", "backend.kind"),
            _col("IMAGE", "backend.image"),
            Column("CPU", _either("backend.cpu_cores", "backend.cpu_limit")),
            Column("MEMORY", lambda i: _bytes("backend.memory_bytes")(i) or dig(i, "backend.memory_limit", "")),
            _col("EGRESS", "backend.network.egress"),
            AGE,
        ),
        (
            _col("PIDS", "backend.pids_limit"),
            Column("DISK", lambda i: _bytes("backend.disk_bytes")(i) or dig(i, "backend.pvc_size", "")),
            _col("IDLE", "idle_timeout_s"),
            _col("MAX-AGE", "max_age_s"),
            _col("REQUIRE", "require"),
        ),
    ),
    "workspace": (
        (
            _col("ID", "id"),
            _col("TEMPLATE", "template_id"),
            _col("PHASE", "phase"),
            Column("CONFINEMENT", _verdict),
            AGE,
            Column("ACTIVE", at("last_activity_at"), time=True),
        ),
        (
            _col("NAME", "name"),
            _col("PROVIDER", "provider_id"),
            _col("CHANNEL", "channel.kind"),
            OWNER,
            Column("EXPIRES", at("expires_at"), time=True),
            _col("REASON", "phase_reason"),
        ),
    ),
    "session": (
        (
            _col("ID", "id"),
            _col("AGENT", "agent_id"),
            _col("WORKSPACE", "workspace_id"),
            _col("STATUS", "status"),
            _col("ENDED", "ended_reason"),
            _col("TURNS", "turns"),
            _col("CALLS", "tool_calls"),
            AGE,
            Column("TOOK", _took),
        ),
        (
            _col("TOKENS-IN", "usage.input_tokens"),
            _col("TOKENS-OUT", "usage.output_tokens"),
            OWNER,
            _col("DETAIL", "ended_detail.message"),
        ),
    ),
    "agent": (
        (
            _col("ID", "id"),
            _col("LLM-PROVIDER", "model.provider_id"),
            _col("MODEL", "model.model_name"),
            Column("TOOLS", _tools),
            AGE,
        ),
        (
            _col("DESCRIPTION", "description"),
            OWNER,
            _col("MAX-TURNS", "limits.max_turns"),
            _col("TIMEOUT", "limits.timeout_s"),
        ),
    ),
    "llm_provider": (
        (
            _col("ID", "id"),
            _col("PROVIDER", "provider"),
            Column("MODEL", _either("config.default_model", "default_model")),
            _col("HEALTH", "status.health"),
            Column("KEY", _key),
            AGE,
        ),
        (_col("BASE-URL", "config.base_url"), _col("CONCURRENCY", "config.max_concurrency")),
    ),
}


def rows_of(kind: str, items: Sequence[Item], *, wide: bool = False, utc: bool = False) -> list[list[str]]:
    """The header and a row for each item."""
    narrow, more = COLUMNS[kind]
    columns = (*narrow, *more) if wide else narrow
    rows = [[column.title for column in columns]]
    for item in items:
        rows.append([_cell(column, item, wide, utc) for column in columns])
    return rows


def _cell(column: Column, item: Item, wide: bool, utc: bool) -> str:
    value = column.value(item)
    if column.time:
        return local_time(value, utc=utc) if wide else age(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else str(value)


def write(console: Console, rows: Sequence[Sequence[str]], *, cut: bool = True, spill: bool = False) -> None:
    """Rows as a table on stdout: two spaces between columns; cells are cut on a terminal only, the first never."""
    console.write(encoded("".join(line + "\n" for line in layout(console, rows, cut=cut, spill=spill))))


def _cells(text: str) -> int:
    """Columns that a text takes on a terminal."""
    from wcwidth import wcswidth

    return max(0, wcswidth(text))


def layout(
    console: Console, rows: Sequence[Sequence[str]], *, cut: bool = True, spill: bool = False, indent: int = 0
) -> list[str]:
    """The lines of a table, made inert cell by cell so that no value can forge a row.

    On a terminal, with `spill` a first cell that is too long makes its own row longer and no other; `indent` is what
    the caller puts before each line.
    """
    width = _cells
    cells = [[inert(cell, lines=False) or "-" for cell in row] for row in rows]
    widths = [max(width(row[i]) for row in cells) for i in range(len(cells[0]))]
    gap, room = 2, console.width - indent - 2 * (len(widths) - 1)
    if cut and console.out_tty:
        least = [widths[0], *(max(width(title), _LEAST.get(title, 6)) for title in cells[0][1:])]
        if sum(map(min, widths, least)) > room:  # one space holds columns apart, a line that wraps does not
            gap, room = 1, console.width - indent - (len(widths) - 1)
        _shrink(widths, least, room)
    if spill and console.out_tty:
        widths[0] = min(widths[0], max(width(cells[0][0]), room - sum(widths[1:])))
    lines = []
    for row in cells:
        shown = [_fit(cell, limit, width, console.ellipsis) for cell, limit in zip(row, widths, strict=True)]
        shown[0] = row[0]  # never cut
        padded = [cell + " " * (limit - width(cell)) for cell, limit in zip(shown, widths, strict=True)]
        lines.append((" " * gap).join(padded).rstrip())
    return lines


def wrapped(console: Console, text: str) -> list[str]:
    """A line in pieces that fit the terminal, the later ones deeper in; whole on a pipe. Nothing is left out."""
    text = inert(text, lines=False)
    if not console.out_tty or _cells(text) <= console.width:
        return [text]
    margin, start, pieces = "", 0, list[str]()
    deeper = " " * min(len(text) - len(text.lstrip()) + 2, console.width // 2)
    while start < len(text):
        end = _end(text, start, console.width - len(margin), first=not margin)
        pieces.append(margin + text[start:end].rstrip())
        margin, start = deeper, end
        while start < len(text) and text[start] == " ":
            start += 1
    return pieces


def _end(text: str, start: int, room: int, *, first: bool) -> int:
    """Where a piece from `start` ends: at the last space that fits, else in the middle of a word."""
    end = min(len(text), start + room)
    while end > start + 1 and _cells(text[start:end]) > room:
        end -= 1
    if end == len(text):
        return end
    lead = len(text) - len(text.lstrip()) if first else 0
    space = text.rfind(" ", start + lead + 1, end + 1)
    return space if space > start else end


def _shrink(widths: list[int], least: list[int], room: int) -> None:
    """Takes from the widest column but the id until the line fits, never below the least that still says something."""
    while sum(widths) > room:
        able = [i for i in range(1, len(widths)) if widths[i] > least[i]]
        if not able:
            return
        widths[max(able, key=lambda i: widths[i])] -= 1


def _fit(text: str, limit: int, width: Callable[[str], int], ellipsis: str) -> str:
    if width(text) <= limit:
        return text
    while text and width(text) > limit - len(ellipsis):
        text = text[:-1]
    return text + ellipsis
