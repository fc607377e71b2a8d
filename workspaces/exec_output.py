"""Kept output of runs: pages of a running or ended one, and everything from the start for a reader that comes late."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from primer_site import loop
from workspaces import bells, exec_rows, execs
from workspaces.exec_rows import STREAMS
from workspaces.execution import OutputChunk, Stream
from workspaces.models import ExecState

POLL_S = 1.0
PAGE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Page:
    """Kept bytes from `offset`; `gap` is set when the read met it and went on behind it."""

    offset: int
    data: bytes
    gap: tuple[int, int] | None
    ended: bool

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data)


async def read(exec_pk: int, name: Stream, offset: int, limit: int = PAGE_BYTES) -> Page:
    """Kept bytes of a running or ended run."""
    run = execs.live(exec_pk)
    keeper = run.keepers[name] if run is not None else None
    if keeper is not None and offset >= keeper.stored:
        start, data = keeper.read(offset, limit)
        gap = keeper.gap if start > offset else None
        return Page(start, data, gap, ended=False)
    start, data = await loop.read(exec_rows.read, exec_pk, name, offset, limit)
    row = await loop.read(exec_rows.load, exec_pk)
    gap = getattr(row, f"{name}_gap")
    if not data and gap and gap[0] <= offset < gap[1]:
        start = gap[1]
    met = gap is not None and offset < gap[1] <= start
    return Page(start, data, tuple(gap) if met else None, ended=row.state == ExecState.ENDED)


async def follow(exec_pk: int) -> AsyncGenerator[OutputChunk, None]:
    """All kept output of a run from its start, then live until it ends: for a reader that comes late."""
    offsets: dict[Stream, int] = dict.fromkeys(STREAMS, 0)
    while True:
        run = execs.live(exec_pk)
        if run is not None:
            run.news.clear()
        quiet = True
        for name in STREAMS:
            page = await read(exec_pk, name, offsets[name])
            offsets[name] = page.next_offset
            if page.data:
                quiet = False
                yield OutputChunk(name, page.offset, page.data)
        if quiet and run is None:
            return
        if quiet and run is not None:
            await bells.wait(run.news, POLL_S)
