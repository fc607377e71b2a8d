"""One run of one session: claimed, brought up, driven through the agent loop, ended. Every side effect has its event first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import structlog

from agents import events as agent
from agents.limits import limits_of
from agents.llm.base import LLM
from agents.loop import AgentLoop, Settings
from agents.messages import INTERRUPTED, Usage
from agents.prices import add_cost
from agents.services import llm_provider_open
from agents.tools import Toolbox
from agents.tools.base import ToolOutcome
from primer_site import loop, metrics
from primer_site.crashpoints import reach
from primer_site.errors import Forbidden, PrimerError
from sessions_app import claims
from sessions_app.bench import SandboxBench
from sessions_app.bringup import bring_up
from sessions_app.events import EventDraft, redactor_of
from sessions_app.history import history_of
from sessions_app.models import AgentSession, EndedReason, EventKind
from sessions_app.querysets import LostLease
from sessions_app.services import INTERRUPTED_HINT, cancelled_detail, session_end
from sessions_app.translate import drafts_of
from sessions_app.writer import Writer, store

# A cancel takes effect within CANCEL_S in every state: it is noticed within HEARTBEAT_S at the latest, and what the run is
# doing has STOP_S to end, which is more than a program's TERM, grace and KILL take. Then the session ends all the same.
CANCEL_S = 5.0
HEARTBEAT_S = 1.0
STOP_S = 3.5
STILL_ENDING = "The sandbox has not said yet that its program is dead; it is told again until it is."
COMMAND_DEAD = "Its command is dead."
COMMAND_UNSEEN = "Its sandbox did not answer; whether its command is dead is not known."
Halt = Literal["cancelled", "interrupted", "lost", "forbidden"]
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Begun:
    """A call that runs, and its exec once there is one."""

    at: float = field(default_factory=time.monotonic)
    exec_id: str | None = None

    @property
    def spent_ms(self) -> float:
        return (time.monotonic() - self.at) * 1000


@dataclass(frozen=True, slots=True)
class Ending:
    reason: EndedReason
    answer: str = ""
    detail: dict[str, str] | None = None


class Run:
    """Drives a claimed session to its end. `halt` ends it early, from the loop; the end is then written all the same."""

    def __init__(self, session: AgentSession) -> None:
        self.session = session
        self.pk = session.pk
        self._redactor = redactor_of(session)
        self._writer = Writer(session, self._redactor)
        self._bench = SandboxBench(workspace_pk=session.workspace_id, session_id=session.slug, user_pk=session.owner_id)
        self._loop: AgentLoop | None = None
        self._started: dict[str, _Begun] = {}  # calls that run now
        self._held: tuple[EventDraft, ...] = ()  # of the turn that ends, not stored yet
        self._unanswered = 0  # calls of the last reply without a result
        self._halted = asyncio.Event()
        self._halt: Halt | None = None
        self._halted_by = ""
        self._stopped = True  # False when the work did not end in time, and a program may still live
        self._llm_kind = ""  # of the model that answers, once it is known
        self._refusal: PrimerError | None = None

    def halt(self, how: Halt, by: str = "") -> None:
        """Ends the run: `cancelled` by somebody, `interrupted` by a stop of the server, `lost` to another runner.

        `forbidden`: its owner lost the workspace.
        """
        if self._halt is None:
            self._halt, self._halted_by = how, by
            self._bench.cancelled_by = by or how
            self._halted.set()

    async def drive(self) -> None:
        """Returns when the end is stored, or when the session belongs to another runner."""
        work = asyncio.create_task(self._work(), name=f"work {self.session.slug}")
        guard = asyncio.create_task(self._guard(), name=f"guard {self.session.slug}")
        halted = asyncio.create_task(self._halted.wait())
        try:
            await asyncio.wait({work, halted}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait({work}, timeout=STOP_S)
                self._stopped = work.done()
            await self._end(self._ending(work))
        except (LostLease, PrimerError) as exc:
            log.warning("run given up", session=self.session.slug, reason=exc.detail)
        finally:
            for task in (work, guard, halted):
                task.cancel()

    async def _guard(self) -> None:
        """Keeps the lease and watches for a cancel, also one that came through another process, and for lost rights."""
        while True:
            try:
                ours, cancelled_by = await loop.write(claims.renew, self.session)
                if not ours:
                    self.halt("lost")
                elif cancelled_by:
                    self.halt("cancelled", cancelled_by)
            except Forbidden as exc:
                self._refusal = exc
                self.halt("forbidden", "primer")
            except Exception:  # the database is away: the lease has time for many more tries
                log.exception("lease not renewed", session=self.session.slug)
            await asyncio.sleep(HEARTBEAT_S)

    async def _work(self) -> Ending:
        session = self.session
        llm: LLM | None = None
        try:
            await loop.read(claims.refuse_lost_right, session.pk)
            # Not a thread of the database: the first use of a kind imports its SDK, which takes seconds.
            llm = await loop.in_thread(llm_provider_open, slug=session.agent_spec["model"]["provider_id"])
            verdict = await bring_up(session.workspace_id, session.workspace.slug, self._writer.add)
            await loop.write(claims.note_confinement, session, verdict)
            self._llm_kind = llm.kind
            history = await loop.read(history_of, session)
            self._loop = _agent_loop(session, llm, Toolbox(self._bench, hide=self._redactor.hide))
            async with aclosing(self._loop.events(history)) as events:
                async for event in events:
                    if isinstance(event, agent.Ended):
                        if event.code.startswith("llm_"):
                            metrics.llm_failed(llm.kind, event.code)
                        return _ending_of(event)
                    await self._take(event)
            raise RuntimeError("the agent loop ended without saying how")
        except LostLease:
            raise
        except PrimerError as exc:
            return _failed(exc)
        finally:
            if llm is not None:
                await llm.close()

    async def _take(self, event: agent.LoopEvent) -> None:
        drafts = drafts_of(event, turns_before=self.session.turns)
        match event:
            case agent.Replied(message):
                self._unanswered = len(message.calls)
            case agent.CallStarted(call):
                self._started[call.call_id] = _Begun()
            case agent.CallExec(call, exec_id):
                self._started[call.call_id].exec_id = exec_id
            case agent.CallEnded():
                self._unanswered -= 1
            case agent.Retrying(error):
                metrics.llm_failed(self._llm_kind, error.code)
            case agent.TurnEnded(usage=usage):
                metrics.llm_used(self._llm_kind, usage.to_dict())
        # The last result, the end of the turn and the start of the next one come without a wait between them.
        if isinstance(event, agent.TurnEnded) or (isinstance(event, agent.CallEnded) and self._unanswered == 0):
            self._held += drafts
        elif self._held:
            await self._store_turn(*drafts)
        elif drafts:
            counts = isinstance(event, agent.TurnStarted | agent.Replied)
            await self._writer.add(*drafts, totals=self._totals() if counts else None)
        if isinstance(event, agent.CallEnded):
            self._started.pop(event.call.call_id, None)
            if not self._held:
                reach("tool-result")

    async def _store_turn(self, *drafts: EventDraft) -> None:
        """The end of a turn with what the run has used, and what follows it, in one transaction."""
        held, self._held = self._held, ()
        await self._writer.add(*held, *drafts, totals=self._totals())
        if any(draft.kind == EventKind.TOOL_RESULT for draft in held):
            reach("tool-result")

    def _ending(self, work: asyncio.Task[Ending]) -> Ending:
        """How the run ended: by itself if it did, else by what halted it."""
        if work.done() and not work.cancelled():
            error = work.exception()
            if error is None:
                return work.result()
            if isinstance(error, LostLease):
                raise error
            log.error("run failed", session=self.session.slug, exc_info=error)
            detail = {"code": "internal", "message": "The server met an error of its own.", "hint": "The log has it."}
            return Ending(EndedReason.FAILED, detail=detail)
        if self._halt == "lost":
            raise LostLease(f"Session {self.session.slug} is driven by another runner.")
        if self._refusal is not None:
            return _failed(self._refusal)
        if self._halt == "cancelled":
            return Ending(EndedReason.CANCELLED, detail=cancelled_detail(self._halted_by, self._command()))
        message = "The server was stopped in the middle of the run."
        return Ending(
            EndedReason.INTERRUPTED, detail={"code": "interrupted", "message": message, "hint": INTERRUPTED_HINT}
        )

    async def _end(self, ending: Ending) -> None:
        await self._writer.flush()
        if self._held:
            await self._store_turn()
        answer = ending.answer or (self._loop.answer if self._loop else "")
        error: tuple[EventDraft, ...] = ()
        if ending.detail and ending.reason == EndedReason.FAILED:
            error = (EventDraft(EventKind.ERROR, {**ending.detail, "retry_in_s": None, "attempt": None}),)
        await store(
            session_end, session=self.session, reason=ending.reason, detail=ending.detail,
            answer=self._redactor.hide(answer), close=self._closer(ending), drafts=error, facts=self._totals(),
        )  # fmt: skip

    def _closer(self, ending: Ending) -> Callable[[str], ToolOutcome]:
        """What a call without a result gets: its program is dead, and why."""
        started = dict(self._started)

        def close(call_id: str) -> ToolOutcome:
            if call_id not in started:
                return ToolOutcome("The call was not run: the run ended before it.", ok=False)
            exec_id, spent = started[call_id].exec_id, started[call_id].spent_ms
            if ending.reason == EndedReason.INTERRUPTED:
                return ToolOutcome(INTERRUPTED, ok=False, exec_id=exec_id, duration_ms=spent)
            message = ending.detail["message"] if ending.detail else ""
            text = f"The call was ended before it was done. {message}".strip()
            if exec_id is None:
                return ToolOutcome(text, ok=False, duration_ms=spent)
            text += f" What it had printed is kept as {exec_id}."
            evidence = {"cancelled_by": self._halted_by or "primer"}
            outcome = ToolOutcome(text, ok=False, exec_id=exec_id, evidence=evidence, duration_ms=spent)
            if not self._stopped:
                return replace(outcome, text=f"{text} {STILL_ENDING}")
            unseen = f" {COMMAND_UNSEEN}" if self._bench.unseen and COMMAND_UNSEEN not in text else ""
            return replace(outcome, text=text + unseen, ended_by="cancelled")

        return close

    def _command(self) -> str:
        """What is known of the command that ran when the run was halted; "" when none did."""
        if not any(begun.exec_id for begun in self._started.values()):
            return ""
        if not self._stopped:
            return STILL_ENDING
        return COMMAND_UNSEEN if self._bench.unseen else COMMAND_DEAD

    def _totals(self) -> dict[str, Any]:
        if self._loop is None:
            return {}
        before, spent = self.session.usage, self._loop.spent
        usage = Usage.from_dict(before) + spent.usage
        # Without tokens there is nothing to pay for, and no price to know.
        cost = add_cost(before, self._loop.cost) if spent.usage.total else before.get("cost")
        return {
            "turns": self.session.turns + spent.turns,
            "tool_calls": self.session.tool_calls + spent.tool_calls,
            "usage": {**usage.to_dict(), "cost": cost},
        }


def _failed(exc: PrimerError) -> Ending:
    return Ending(EndedReason.FAILED, detail={"code": exc.code, "message": exc.detail, "hint": exc.hint_text})


def _agent_loop(session: AgentSession, llm: LLM, tools: Toolbox) -> AgentLoop:
    spec = session.agent_spec
    settings = Settings(
        model=spec["model"].get("model_name") or llm.default_model,
        system="\n\n".join(spec["system_prompt"]),
        max_output_tokens=spec["max_output_tokens"],
        temperature=spec["temperature"],
        thinking=spec["thinking"],
    )
    return AgentLoop(llm, tools, settings, limits_of(spec["limits"], session.limits))


def _ending_of(event: agent.Ended) -> Ending:
    reason = EndedReason(event.reason)
    detail = {"code": event.code, "message": event.message, "hint": event.hint} if event.code else None
    return Ending(reason, event.answer, detail)
