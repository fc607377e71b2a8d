"""All runs of the sandbox: the spare keeper, who is whose child, what is kept of ended runs, who filled the disk."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import os
import resource
import time

from . import evidence, linux, protocol
from . import keeper as keepers
from .loop import IN, Loop
from .paths import Failure, Root, failure_of
from .runs import Run
from .start import StartRequest
from .watcher import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .connection import Connection

MAX_IDLE = 8
IDLE_S = 2.0  # after which only one of them stays
SPARE_PAUSE_S = (0.05, 5.0)  # before the next spare keeper, doubled while they die young
YOUNG_S = 1.0
MAX_STRAYS = 256
MAX_ACTIVE = 64
MAX_ENDED = 128
KEEP_ENDED_S = 600.0  # output of ended runs that nobody takes
KEEP_ENDED_BYTES = 8 * 1024 * 1024
TICK_S = 0.25


class Registry:
    def __init__(self, loop: Loop, root: Root, base_env: dict[bytes, bytes], resident: bool) -> None:
        self.loop, self.root, self.base_env, self.resident = loop, root, base_env, resident
        self.counters = evidence.Counters()
        soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        self.file_limit = None if soft == resource.RLIM_INFINITY else float(soft)
        self.disk_bytes = 0
        self.oom_score = min(1000, int(linux.read_small("/proc/self/oom_score_adj").strip() or b"0") + 200)
        self.runs: dict[str, Run] = {}
        self.active: dict[str, Run] = {}
        self.ending: dict[str, Run] = {}  # ended runs whose survivors are being ended
        self.keepers: dict[int, keepers.Keeper] = {}
        self.watcher = Watcher(self)
        self._idle: list[keepers.Keeper] = []
        self._spare_pause = self._spare_at = 0.0
        self._strays: dict[int, tuple[tuple[int, int, int] | None, int, int, int]] = {}
        self._tick_at = self._wake_at = 0.0
        self._busy_since_trim = False

    # -- starting

    def start(self, client: Connection, stream: int, body: dict[str, Any]) -> None:
        """Starts a run, or attaches to the one that carries this id already: a repeated start never runs code twice."""
        known = self.runs.get(str(body.get("id")))
        if known is not None:
            known.attach(client, stream, body)
            return
        try:
            request = StartRequest(body, self.base_env)
        except (TypeError, ValueError):
            raise Failure("invalid", "a field of the start request has a wrong type") from None
        if len(self.active) >= MAX_ACTIVE:
            raise Failure("busy", f"{MAX_ACTIVE} programs are running already")
        keeper = self.take_keeper()
        try:
            run = Run(self, request, keeper, self._window())
        except OSError as error:
            self.recycle(keeper)
            raise failure_of(error) from None
        self.runs[run.id] = self.active[run.id] = run
        self._busy_since_trim = True
        if len(self.active) > 1:
            for other in self.active.values():
                other.facts.shared = True
        run.attach(client, stream, body)

    def _window(self) -> int:
        """Less for each when many run: what is kept counts against the sandbox's own memory limit."""
        share = 16 * protocol.WINDOW // (2 * len(self.active) + 2)
        return max(protocol.CHUNK, min(protocol.WINDOW, share))

    def take_keeper(self) -> keepers.Keeper:
        while self._idle:
            keeper = self._idle.pop()
            self.loop.forget(keeper.sock.fileno())
            if not keeper.dead:
                return keeper
            self._dismiss(keeper)
        try:
            return self._fork()
        except OSError as error:
            reason = "no_process" if error.errno == errno.EAGAIN else "error"
            facts = {"part": "argv0", "reason": reason, "errno": error.errno or 0}
            raise Failure("cannot_start", os.strerror(error.errno or 0), **facts) from None

    def ensure_idle(self) -> None:
        """At the end of a turn: one keeper waits ahead, so a start costs no fork of this process."""
        if not self._idle and self.loop.now >= self._spare_at:
            try:
                self._put_by(self._fork())
            except OSError:
                return  # the pids limit is reached; tried again at the next turn

    def recycle(self, keeper: keepers.Keeper) -> None:
        """A keeper without a run waits for the next, unless a program has tampered with it."""
        if len(self._idle) < MAX_IDLE and keeper.reset():
            self._put_by(keeper)
        else:
            self._dismiss(keeper)

    def _put_by(self, keeper: keepers.Keeper) -> None:
        keeper.idle_since = self.loop.now
        self._idle.append(keeper)
        self.loop.watch(keeper.sock.fileno(), IN, self._on_idle)

    def _fork(self) -> keepers.Keeper:
        keeper = keepers.fork_keeper(self.root.fd, self.resident)
        self.keepers[keeper.pid] = keeper
        return keeper

    def _on_idle(self, mask: int) -> None:
        """An idle keeper has nothing to say: one that is heard has been killed, or cannot live here at all. Spares that die
        young are made again ever more slowly; a start meanwhile forks its own."""
        dead = [keeper for keeper in self._idle if keeper.dead]
        if dead and max(self.loop.now - keeper.idle_since for keeper in dead) < YOUNG_S:
            self._spare_pause = min(SPARE_PAUSE_S[1], max(SPARE_PAUSE_S[0], 2 * self._spare_pause))
            self._spare_at = self.loop.now + self._spare_pause
        elif dead:
            self._spare_pause = 0.0
        self._dismiss_if(lambda keeper: keeper in dead)

    def _dismiss_if(self, unwanted: Callable[[keepers.Keeper], bool]) -> None:
        for keeper in [one for one in self._idle if unwanted(one)]:
            self._idle.remove(keeper)
            self._dismiss(keeper)

    def _dismiss(self, keeper: keepers.Keeper) -> None:
        self.loop.close_fd(keeper.sock.detach())
        self.collect(keeper)

    # -- reaping

    def collect(self, keeper: keepers.Keeper) -> bool:
        """Takes a keeper that has ended or is to; True when it was killed (its processes are then ours)."""
        if keeper.alive:
            linux.send_signal(keeper.pid, _signal.SIGKILL)  # where it ends by itself, this changes nothing any more
            try:
                _, status = os.waitpid(keeper.pid, 0)
            except ChildProcessError:
                status = 0
            self._keeper_died(keeper, status)
        return keeper.killed

    def _keeper_died(self, keeper: keepers.Keeper, status: int) -> None:
        keeper.alive = False
        keeper.killed = status != 0
        self.keepers.pop(keeper.pid, None)

    def reap(self) -> None:
        """Takes every child that has ended; a keeper that was stopped goes on."""
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            pid = seen.si_pid
            if seen.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED):
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)  # seen, so that it is not shown again
                if pid in self.keepers:
                    linux.send_signal(pid, _signal.SIGCONT)
                continue
            kin = None if pid in self.keepers else linux.kin_of(pid)  # told by /proc only until it is waited for
            _, status, usage = os.wait4(pid, 0)
            if pid in self.keepers:
                self._keeper_died(self.keepers[pid], status)
            else:
                cpu_us = int((usage.ru_utime + usage.ru_stime) * 1e6)
                self._strays[pid] = (kin, status, cpu_us, int(usage.ru_maxrss))
        # not reached

    def reap_strays(self) -> None:
        """Gives the ends of orphans to the runs whose main processes they were; the others are kept for a while, for a run
        that does not know its main process yet."""
        mains = {run.main: run for run in self.active.values() if run.main}
        for pid in list(self._strays):
            run = mains.get(pid)
            if run is not None:
                _, status, cpu_us, peak_kib = self._strays.pop(pid)
                run.main_reaped(status, cpu_us, peak_kib)
        while len(self._strays) > MAX_STRAYS:
            del self._strays[next(iter(self._strays))]

    def find_main(self, run: Run) -> int | None:
        """The main process of a run whose keeper died before it told the number: the first session leader among our
        children that came into being after the run was asked for, dead or alive."""
        self.reap()
        mains = {other.main for other in self.active.values()}
        found = [(kin, pid) for pid, (kin, *_) in self._strays.items() if kin is not None]
        for pid, (parent, _) in linux.processes().items():
            if parent == os.getpid() and pid not in self.keepers and pid not in self._strays:
                kin = linux.kin_of(pid)
                if kin is not None:
                    found.append((kin, pid))
        leaders = [
            (kin[2], pid) for kin, pid in found if kin[1] == pid and kin[2] >= run.asked_tick and pid not in mains
        ]
        return min(leaders)[1] if leaders else None

    def orphans(self) -> set[int]:
        """Children of ours that are neither keepers nor main processes: left by runs whose keeper was killed."""
        me = os.getpid()
        mains = {run.main for run in self.active.values() if not run.reaped}
        table = linux.processes()
        return {
            pid
            for pid, (parent, state) in table.items()
            if parent == me and pid not in self.keepers and pid not in mains and state not in "ZX"
        }

    def orphans_of(self, run: Run) -> set[int]:
        """Whose an orphan is cannot be told when several runs have lost their keeper: it is everybody's to list, and ended
        with the last of them."""
        others = [one for one in self.active.values() if one is not run and one.orphaned]
        if others and run.kill is not None:
            return set()
        return self.orphans()

    # -- keeping

    def ended(self, run: Run) -> None:
        self.active.pop(run.id, None)
        last = run.orphaned and not any(one.orphaned for one in self.active.values())
        if last and self.orphans():
            run.end_survivors(0.0)
            run.left = None
        if len(self.runs) > MAX_ENDED + MAX_ACTIVE:
            self._prune()

    def _prune(self) -> None:
        """Bounds what ended runs hold: first their output, then they themselves, never those with living processes."""
        ended = [run for run in self.runs.values() if run.state == "ended"]
        held = sum(output.kept for run in ended for output in run.outputs)
        for run in ended:
            old = self.loop.now - run.finished_at > KEEP_ENDED_S
            if (held > KEEP_ENDED_BYTES or old) and run.client is None:
                for output in run.outputs:
                    held -= output.kept
                    output.drop()
        surplus = len(ended) - MAX_ENDED
        for run in ended:
            if surplus <= 0:
                break
            if run.left is False and run.client is None:
                del self.runs[run.id]
                surplus -= 1

    def wait_s(self) -> float:
        """How long the loop may wait for the next event."""
        return max(0.0, min(self._wake_at - time.monotonic(), TICK_S))

    def tick(self) -> None:
        """Moves every run on: reaping, deadlines, sweeps."""
        now = time.monotonic()
        self.loop.now = now
        self.reap()
        if self._strays:
            self.reap_strays()
        self._wake_at = now + TICK_S
        for run in [*self.active.values(), *self.ending.values()]:
            run.advance(now)
            self._wake_at = min(self._wake_at, run.wake_at())
        if self.ending:
            self.ending = {run.id: run for run in self.ending.values() if run.kill is None or not run.kill.done}
        if now >= self._tick_at:
            self._tick_at = now + TICK_S
            self._slow_tick(now)

    def _slow_tick(self, now: float) -> None:
        for run in self.runs.values():
            if run.state == "ended" and run.left is not False:
                run.drain_survivors()
        self._prune()
        if self._busy_since_trim and not self.active:
            self._busy_since_trim = False
            linux.trim_heap()  # what a flood had taken goes back to the sandbox
        spare = self._idle[0] if self._idle else None
        self._dismiss_if(lambda keeper: keeper is not spare and now - keeper.idle_since > IDLE_S)
        self.watcher.tick(now)

    def disk_is_full(self) -> bool:
        info = os.fstatvfs(self.root.fd)
        return info.f_bavail * info.f_frsize < 64 * 1024
