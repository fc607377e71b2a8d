"""The tools of a workspace. They come with the session's binding: an agent does not list them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from agents.llm.base import ToolSpec
from agents.messages import ToolCall
from agents.tools.base import BenchFailed, FileChange, Tool, ToolEvent, ToolOutcome, Workbench
from agents.tools.execs import Exec, Glob, Grep
from agents.tools.files import Edit, Ls, Read, Write
from agents.tools.outputs import GrepOutput, ReadOutput
from agents.tools.schema import problems
from primer_site.errors import PrimerError
from workspaces.diff import unified

WORKSPACE_TOOLS: Final[tuple[Tool, ...]] = (
    Write(),
    Read(),
    Edit(),
    Ls(),
    Glob(),
    Grep(),
    Exec(),
    ReadOutput(),
    GrepOutput(),
)


def same(text: str) -> str:
    return text


class Toolbox:
    """The tools of one session on its bench; `hide` removes known secrets from whatever a model gets to see."""

    def __init__(
        self,
        bench: Workbench,
        *,
        tools: tuple[Tool, ...] = WORKSPACE_TOOLS,
        hide: Callable[[str], str] = same,
    ) -> None:
        self._bench = bench
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._hide = hide

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    def independent(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.independent

    async def run(self, call: ToolCall) -> AsyncGenerator[ToolEvent, None]:
        """What the call does, then its `ToolOutcome`. Whatever is wrong with the call is an error result for the model."""
        if refusal := self._refusal(call):
            yield ToolOutcome(refusal, ok=False)
            return
        began = asyncio.get_running_loop().time()
        try:
            async with aclosing(self._tools[call.name].run(call.arguments, self._bench)) as events:
                async for event in events:
                    if isinstance(event, ToolOutcome):
                        spent = (asyncio.get_running_loop().time() - began) * 1000
                        files = tuple([await self._compared(change) for change in event.files])
                        text = self._hide(event.text)
                        yield replace(event, text=text, duration_ms=event.duration_ms or spent, files=files)
                    else:
                        yield event
        except PrimerError as exc:
            spent = (asyncio.get_running_loop().time() - began) * 1000
            text = self._hide(f"{exc.detail} {exc.hint_text}".strip())
            fatal = exc if isinstance(exc, BenchFailed) else None
            yield ToolOutcome(text, ok=False, duration_ms=spent, fatal=fatal)

    async def _compared(self, change: FileChange) -> FileChange:
        """With its diff. Secrets are hidden before: the marks of a diff stand between the lines of a secret that has several."""
        if change.texts is None:
            return change
        before, after = map(self._hide, change.texts)
        return replace(change, diff=await asyncio.to_thread(unified, before, after), texts=None)

    def _refusal(self, call: ToolCall) -> str:
        """Why a call is not run, or "". Nothing is ever run with defaults in place of what could not be read."""
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return f"There is no tool {call.name[:80]!r}. The tools of this session are: {known}."
        if call.problem:
            return f"The call was not run: {call.problem}."
        found = problems(call.arguments, tool.schema)
        return f"The call was not run: {'; '.join(found[:10])}." if found else ""
