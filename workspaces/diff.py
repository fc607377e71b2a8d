"""What changed in a text, as a unified diff of bounded size and bounded cost: both sides may be hostile. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, Literal, TypeAlias

DIFF_BYTES: Final = 64 * 1024  # of the former content that is compared, and of the diff that is kept
CONTEXT: Final = 3  # lines
COMPARED: Final = (
    20_000  # lines of one side times lines of the other: above that, what differs counts as replaced whole
)
CUT: Final = "[the rest of the diff is left out]"
Opcode: TypeAlias = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


class _Known(SequenceMatcher[str]):
    """Opcodes that were found elsewhere, to be grouped the way the library groups its own."""

    def __init__(self, opcodes: list[Opcode]) -> None:
        super().__init__(None, [], [])
        self._known = opcodes

    def get_opcodes(self) -> list[Opcode]:
        return self._known


def unified(before: str, after: str, *, context: int = CONTEXT) -> str:
    """Hunks with `context` lines around each change, "" where no line differs; at most DIFF_BYTES bytes and a note."""
    old, new = before.splitlines(), after.splitlines()
    whole = _Known(opcodes(old, new))
    found: list[str] = []
    size = 0
    for group in whole.get_grouped_opcodes(context):
        for line in _hunk(group, old, new):
            size += len(line.encode("utf-8", "replace")) + 1
            if size > DIFF_BYTES:
                return "\n".join([*found, CUT])
            found.append(line)
    return "\n".join(found)


def opcodes(old: Sequence[str], new: Sequence[str]) -> list[Opcode]:
    """What to do to get from one to the other. What both begin and end with costs a look at each line and no more."""
    shorter = min(len(old), len(new))
    head = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    tail = next((n for n in range(shorter - head) if old[-1 - n] != new[-1 - n]), shorter - head)
    old_end, new_end = len(old) - tail, len(new) - tail
    found: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    if (old_end - head) * (new_end - head) > COMPARED:
        found.append(("replace", head, old_end, head, new_end))
    else:
        middle = SequenceMatcher(None, old[head:old_end], new[head:new_end])
        found += [(tag, a + head, b + head, c + head, d + head) for tag, a, b, c, d in middle.get_opcodes()]
    return [*found, ("equal", old_end, len(old), new_end, len(new))] if tail else found


def _hunk(group: Sequence[tuple[str, int, int, int, int]], old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    first, last = group[0], group[-1]
    if all(tag == "equal" for tag, *_ in group):
        return
    yield f"@@ -{_span(first[1], last[2])} +{_span(first[3], last[4])} @@"
    for tag, a, b, c, d in group:
        if tag == "equal":
            yield from (f" {line}" for line in old[a:b])
        else:
            yield from (f"-{line}" for line in old[a:b])
            yield from (f"+{line}" for line in new[c:d])


def _span(start: int, end: int) -> str:
    """Lines as a hunk names them: the first, counted from one, and how many."""
    return f"{start + 1 if end > start else start},{end - start}"
