"""Tables: the columns of each kind, and lines that fit a terminal but are whole on a pipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cli.output import Console, encoded, inert
from cli.text import age, dig, local_time, seconds, size

Item = dict[str, Any]
Cell = Callable[[Item], Any]
Time = Callable[[Any], str]  # a time of the API as people read it


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
# still an id that every command takes, and a status that is cut says nothing. OBJECT: a token's id is taken whole only.
_LEAST = {
    "WORKSPACE": 9,
    "STATUS": 7,
    "ENDED": 9,
    "PHASE": 8,
    "HEALTH": 11,
    "CONFINEMENT": 11,
    "PLURAL": 19,
    "OBJECT": 42,
}
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


def rows_of(
    console: Console, kind: str, items: Sequence[Item], *, wide: bool = False, utc: bool = False
) -> list[list[str]]:
    """The header and a row for each item. The wide one has local times; ages where a terminal has no room for them."""
    narrow, more = COLUMNS[kind]
    columns = (*narrow, *more) if wide else narrow

    def build(time: Time) -> list[list[str]]:
        return [[c.title for c in columns], *([_cell(c, item, time) for c in columns] for item in items)]

    return timed(console, build, wide=wide, utc=utc)


def timed(console: Console, build: Callable[[Time], list[list[str]]], *, wide: bool, utc: bool) -> list[list[str]]:
    """What `build` makes with the form that times have: ages, in a wide table local times if a terminal has the room."""
    if wide:
        rows = build(lambda value: local_time(value, utc=utc))
        widths = [max(_cells(inert(row[i], lines=False)) for row in rows) for i in range(len(rows[0]))]
        if not console.out_tty or sum(widths) + 2 * (len(widths) - 1) <= console.width:
            return rows
    return build(age)


def _cell(column: Column, item: Item, time: Time) -> str:
    value = column.value(item)
    if column.time:
        return time(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else str(value)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The lines of a table, and the titles of the columns that a terminal had no room for."""

    lines: list[str]
    left_out: list[str]

    @property
    def note(self) -> str:
        """For people; empty when all is there."""
        names = ", ".join(self.left_out)
        return f"no room for {names}: a wider terminal or -o json has them" if names else ""


def write(
    console: Console, rows: Sequence[Sequence[str]], *, cut: bool = True, spill: bool = False, fold: bool = False
) -> None:
    """Rows as a table on stdout: two spaces between columns; cells are cut on a terminal only, the first never."""
    table = fitted(console, rows, cut=cut, spill=spill, fold=fold)
    console.write(encoded("".join(line + "\n" for line in table.lines)))
    if table.note:
        console.info(table.note)


def _cells(text: str) -> int:
    """Columns that a text takes on a terminal."""
    from wcwidth import wcswidth

    return max(0, wcswidth(text))


def layout(console: Console, rows: Sequence[Sequence[str]], *, cut: bool = True, indent: int = 0) -> list[str]:
    """The lines of a table that stands `indent` columns in."""
    return fitted(console, rows, cut=cut, indent=indent).lines


def fitted(
    console: Console,
    rows: Sequence[Sequence[str]],
    *,
    cut: bool = True,
    spill: bool = False,
    fold: bool = False,
    indent: int = 0,
) -> Fitted:
    """A table, made inert cell by cell so that no value can forge a row; whole on a pipe.

    On a terminal no line is longer than it: cells are cut, or with `fold` continued below, and where that is not enough
    columns are left out from the right. With `spill` a first cell that is too long makes its own row longer and no other.
    """
    cells = [[inert(cell, lines=False) or "-" for cell in row] for row in rows]
    widths = [max(_cells(row[i]) for row in cells) for i in range(len(cells[0]))]
    gap, left_out = 2, list[str]()
    if (cut or fold) and console.out_tty:
        least = [widths[0], *(max(_cells(title), _LEAST.get(title, 6)) for title in cells[0][1:])]
        room = console.width - indent
        if sum(map(min, widths, least)) + 2 * (len(widths) - 1) > room:
            gap = 1  # one space holds columns apart, a line that wraps does not
        while len(widths) > 1 and sum(map(min, widths, least)) + len(widths) - 1 > room:
            left_out.insert(0, cells[0][len(widths) - 1])
            widths.pop()
            least.pop()
        _shrink(widths, least, room - gap * (len(widths) - 1))
    if spill and console.out_tty:
        room = console.width - indent - 2 * (len(widths) - 1)
        widths[0] = min(widths[0], max(_cells(cells[0][0]), room - sum(widths[1:])))
    lines = list[str]()
    for row in cells:
        shown = row[: len(widths)]
        lines += _folded(shown, widths, gap) if fold else [_line(_cut(shown, widths, console.ellipsis), widths, gap)]
    return Fitted(lines, left_out)


def _line(cells: Sequence[str], widths: Sequence[int], gap: int) -> str:
    padded = [cell + " " * (limit - _cells(cell)) for cell, limit in zip(cells, widths, strict=True)]
    return (" " * gap).join(padded).rstrip()


def _cut(cells: Sequence[str], widths: Sequence[int], ellipsis: str) -> list[str]:
    """The cells, each within its width but the first."""
    return [cells[0], *(_fit(cell, limit, ellipsis) for cell, limit in zip(cells[1:], widths[1:], strict=True))]


def _folded(cells: Sequence[str], widths: Sequence[int], gap: int) -> list[str]:
    """A row of one line, or of more where a cell goes on below itself."""
    columns = [_pieces(cell, limit) for cell, limit in zip(cells, widths, strict=True)]
    height = max(map(len, columns))
    full = [[*column, *[""] * (height - len(column))] for column in columns]
    return [_line([column[number] for column in full], widths, gap) for number in range(height)]


def _pieces(text: str, limit: int) -> list[str]:
    """A text in pieces of at most `limit` columns, cut behind spaces and commas where there are some."""
    pieces = list[str]()
    while _cells(text) > limit:
        end = len(text)
        while end > 1 and _cells(text[:end]) > limit:
            end -= 1
        at = end if text[end] == " " else max(text.rfind(" ", 0, end), text.rfind(",", 0, end)) + 1
        pieces.append(text[: at or end].rstrip())
        text = text[at or end :].lstrip()
    return [*pieces, text]


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


def _fit(text: str, limit: int, ellipsis: str) -> str:
    if _cells(text) <= limit:
        return text
    while text and _cells(text) > limit - len(ellipsis):
        text = text[:-1]
    return text + ellipsis
