"""One run: a keeper, a main process, three pipes, a verdict. It belongs to the runtime and not to a connection."""

# ruff: noqa: SIM105 - contextlib would cost the sandbox half a megabyte
from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os
import time

from . import evidence, linux, protocol
from . import keeper as keepers
from .followed import Followed
from .killer import Kill
from .loop import IN, OUT
from .output import Input, Output
from .paths import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .registry import Registry
    from .start import StartRequest

MAX_BIRTHS = 5
DRAIN_S = 0.05  # after the end of the main process, for what others still write, and for those about to end
SETTLE_S = 0.25  # the same while one of those wants the processor: it may be about to end and wait for its turn
_LOOK_AGAIN_S = 0.02
START_S = 5.0  # beyond its timeout, for a run whose keeper does not answer
_REASONS = {1: "permission", 2: "not_found", 7: "argument_too_long", 8: "not_a_program", 11: "no_process"}
_REASONS.update({12: "no_memory", 13: "not_executable", 20: "not_a_directory", 21: "is_a_directory", 26: "busy"})
_REASONS.update({36: "name_too_long", 40: "symlink_loop", 80: "no_interpreter"})


class Run(Followed):
    def __init__(self, host: Registry, request: StartRequest, keeper: keepers.Keeper, window: int) -> None:
        self.host, self.loop = host, host.loop
        self.id, self.request = request.id, request
        Followed.__init__(self)
        self.state = "starting"  # starting, running, ended
        self.main = 0
        self.exited = self.reaped = False
        self.left: bool | None = None  # whether processes of the run outlive its main one
        self.facts = evidence.Facts()
        self.facts.timeout_s, self.facts.output_kill_bytes = request.timeout_s, request.output_kill_bytes
        self.cpu_us = self.peak_kib = 0
        self.asked_tick = int(time.clock_gettime(time.CLOCK_BOOTTIME) * linux.TICKS_PER_S) - 1
        self.started_at = self.ended_at = self.finished_at = host.loop.now
        self.deadline = host.loop.now + request.timeout_s
        self.drain_until = 0.0
        self.kill: Kill | None = None
        self.killers: list[Any] = []  # tickets that wait for the end of a kill
        self.counters = host.counters.read()
        self._window, self._births = window, 0
        self._unsent = self._reports = b""
        self.stdin = Input(-1, self.loop.close_fd)
        self._adopt(keeper)

    # -- the keeper

    def _adopt(self, keeper: keepers.Keeper) -> None:
        """Takes a keeper, hands it the request and the program's ends of three new pipes. OSError without descriptors."""
        self.keeper, self._births, self.orphaned = keeper, self._births + 1, False
        self.main, self.reaped, self.parted, self.left = 0, False, False, None
        in_read, in_write, out_read, out_write, err_read, err_write = keepers.pipes()
        self.stdin.move(in_write)
        close_fd = self.loop.close_fd
        self.outputs = Output(protocol.STDOUT, out_read, close_fd), Output(protocol.STDERR, err_read, close_fd)
        for output in self.outputs:
            output.window, output.limit = self._window, self.request.credit
        request = self.request
        self.stdin.ended = self.stdin.ended or not request.stdin
        self._reports, self._unsent = b"", keepers.request(request.argv, request.env, request.cwd)
        theirs = in_read, out_write, err_write
        self.loop.watch(keeper.sock.fileno(), IN, self._on_keeper)
        try:
            self._unsent = self._unsent[keepers.hand_over(keeper, self._unsent, theirs) :]
        except OSError:
            pass  # dead: the reading side says so
        for fd in theirs:
            os.close(fd)
        if self._unsent:
            self._send_rest()

    def _send_rest(self) -> None:
        sock = self.keeper.sock
        try:
            self._unsent = self._unsent[sock.send(self._unsent, _socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""
        self.loop.watch(sock.fileno(), IN | OUT if self._unsent else IN)

    def _on_keeper(self, mask: int) -> None:
        keeper = self.keeper
        if mask & OUT and self._unsent:
            self._send_rest()
        try:
            data = keeper.sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._keeper_gone()
            return
        self._reports += data
        while len(self._reports) >= keepers.REPORT.size:
            report = keepers.REPORT.unpack_from(self._reports)
            self._reports = self._reports[keepers.REPORT.size :]
            self._on_report(*report)

    def _on_report(self, kind: bytes, first: int, second: int, cpu_us: int, peak_kib: int) -> None:
        if kind == keepers.STARTED:
            self._begun(first)
        elif kind == keepers.FAILED:
            part = "cwd" if first == keepers.PART_CWD else "argv0"
            reason = _REASONS.get(second, "error")
            self._release_keeper()
            self._fail(Failure("cannot_start", os.strerror(second), part=part, reason=reason, errno=second))
        elif kind == keepers.EXITED:
            self.main_ended(first == os.CLD_EXITED, second)
        elif kind == keepers.REAPED:
            self.reaped, self.left = True, bool(first)
            self.cpu_us, self.peak_kib = cpu_us, peak_kib
            if not first:
                self._release_keeper()
            self.advance(self.loop.now)

    def _release_keeper(self) -> None:
        """Nothing of this run is below it any more, so it may serve another."""
        self.loop.forget(self.keeper.sock.fileno())
        self.parted = True
        self.host.recycle(self.keeper)

    def _begun(self, main: int) -> None:
        self.main, self.state = main, "running"
        linux.raise_oom_score(main, self.host.oom_score)
        for output in self.outputs:
            self.loop.watch(output.fd, IN, self._reader(output))
        self._tell_started()
        self.write_stdin()

    def _keeper_gone(self) -> None:
        """The end of its socket: it has seen the last survivor of the run go, or somebody has killed it."""
        self.loop.close_fd(self.keeper.sock.detach())
        self.orphaned = self.host.collect(self.keeper)
        self.parted = True  # only now: what it had said before its death was read first
        if self.state == "starting":
            self._rescue()
        elif not self.orphaned:
            self.left = False
            if self.state == "ended":
                for output in self.outputs:
                    output.close_pipe()
        self.advance(self.loop.now)

    def _rescue(self) -> None:
        """Its keeper was killed before it could tell the pid: the program, if there is one, is a child of ours now."""
        found = self.host.find_main(self) if self.keeper.began else None
        if found is not None:
            self._begun(found)
            self.host.reap_strays()
        elif self.kill is not None:  # ended before it could begin
            self.state, self.reaped, self.left = "running", True, False
            self.main_ended(False, _signal.SIGKILL)
        elif self.keeper.began or self._births >= MAX_BIRTHS or not self._born_again():
            # it may have run, so it must not run a second time
            self._fail(Failure("cannot_start", "killed", part="argv0", reason="killed", errno=0))

    def _born_again(self) -> bool:
        for output in self.outputs:
            output.close_pipe()
        try:
            self._adopt(self.host.take_keeper())
        except (Failure, OSError):
            return False
        return True

    def main_ended(self, exited: bool, status: int) -> None:
        """From the keeper's report, or from PID 1's own wait when the keeper is dead."""
        if self.exited or self.state != "running":
            return
        self.exited, self.ended_at = True, self.loop.now
        if exited:
            self.facts.exit_code = status
        else:
            self.facts.signal = status
        self.drain_until = self.loop.now + DRAIN_S
        for output in self.outputs:
            output.owe()
        for output in self.outputs:
            self._read(output)

    def main_reaped(self, status: int, cpu_us: int, peak_kib: int) -> None:
        """PID 1 has become the parent: the keeper was killed."""
        self.main_ended(os.WIFEXITED(status), os.WEXITSTATUS(status) if os.WIFEXITED(status) else os.WTERMSIG(status))
        self.cpu_us, self.peak_kib, self.reaped = cpu_us, peak_kib, True
        self.advance(self.loop.now)

    # -- the pipes

    def _reader(self, output: Output) -> Any:
        return lambda mask: self._read(output)

    def _read(self, output: Output) -> None:
        """One chunk, or all that is owed after the end."""
        while output.room:
            count = output.read()
            if count <= 0 or not self.exited or self.state == "ended":
                break
        if output.fd >= 0:
            self.loop.watch(output.fd, IN if output.room and self.state != "ended" else 0)
        if output.total > self.request.output_kill_bytes and not self.exited:
            output.discard = True  # counted, not kept, until the program is gone
            self.end("output_cap", 0.0)
        self.advance(self.loop.now)

    # -- what moves it on

    def end(self, cause: str, grace_s: float, by: str | None = None) -> None:
        """Ends the run because of `cause`, once; a run whose main process has ended keeps its own verdict."""
        if self.state == "ended" or self.kill is not None:
            return
        if not self.exited:
            self.facts.cause = cause
            self.facts.cancelled_by = by if cause == "cancelled" else None
        self.stdin.close()
        self.kill = Kill(self._roots, self._singles, self.loop.now, grace_s)

    def end_survivors(self, grace_s: float) -> None:
        self.host.ending[self.id] = self
        if self.kill is None or self.kill.done:
            self.kill = Kill(self._roots, self._singles, self.loop.now, grace_s)

    def _roots(self) -> set[int]:
        return set() if self.parted else {self.keeper.pid}

    def _singles(self) -> set[int]:
        if not self.orphaned:
            return set()
        own = {self.main} if self.main and not self.reaped else set()
        return own | self.host.orphans_of(self)

    @property
    def gone(self) -> bool:
        return self.left is False and (self.exited or self.state == "ended")

    def wake_at(self) -> float:
        if self.kill is not None and not self.kill.done:
            return self.kill.next_at
        if self.state == "running":
            return self.drain_until if self.exited else self.deadline
        return self.deadline + START_S

    def advance(self, now: float) -> None:
        """Deadlines, sweeps, and the end once everything that belongs to it is there. Called often, does little."""
        if self.kill is not None and not self.kill.done:
            self.kill.step(now, self.gone)
        if self.state == "starting" and now > self.deadline + START_S:
            linux.send_signal(self.keeper.pid, _signal.SIGKILL)  # stopped by a program of another run
        if self.state == "running":
            if not self.exited and now >= self.deadline:
                self.end("timeout", self.request.grace_s)
            ended = self.exited and (self.reaped or self.parted)
            failed = self.kill is not None and self.kill.failed(now)
            if failed or ((self.kill is None or self.kill.done) and ended and self._drained(now)):
                self._finish(now)
        if self.killers and self.kill is not None and self.kill.done:
            for ticket in self.killers:
                ticket.answer({"left": len(self.kill.left)})
            self.killers = []

    def _drained(self, now: float) -> bool:
        """Nothing is owed, and nobody is left, or has had a moment: for what it still prints, and to die by itself, like the
        writer of a pipe whose reader has gone."""
        if any(output.over for output in self.outputs if output.fd >= 0 and not output.eof):
            return False
        return self.left is False or (now >= self.drain_until and not self._unsettled(now))

    def _unsettled(self, now: float) -> bool:
        """Whether to look again a little later, because a process that was left is not at rest. In a sandbox that has used
        up its share of the processor, one that would end in a millisecond waits for a tenth of a second."""
        if now >= self.ended_at + SETTLE_S:
            return False
        table = linux.processes()
        if not any(table[pid][1] in "RD" for pid in self.members(table) if pid in table):
            return False
        self.drain_until = now + _LOOK_AGAIN_S
        return True

    def _finish(self, now: float) -> None:
        oom, pids = self.host.counters.read()
        facts = self.facts
        facts.oom_kill, facts.pids_max = max(0, oom - self.counters[0]), max(0, pids - self.counters[1])
        facts.disk_full = facts.exit_code != 0 and self.host.disk_is_full()
        facts.file_limit, facts.disk_bytes = self.host.file_limit, self.host.disk_bytes or None
        ended_by, proof = evidence.verdict(facts, self.host.counters.limits)
        self.state, self.finished_at = "ended", now
        for output in self.outputs:
            if output.fd >= 0:
                self.loop.forget(output.fd)
            if self.left is False or output.eof:
                output.close_pipe()
        self.stdin.close()
        self.outcome = {
            "ended_by": ended_by,
            "exit_code": facts.exit_code,
            "signal": facts.signal,
            "stdout_bytes": self.outputs[0].total,
            "stderr_bytes": self.outputs[1].total,
            "stdout_end": self.outputs[0].stored,
            "stderr_end": self.outputs[1].stored,
            "duration_ms": round(((self.ended_at if self.exited else now) - self.started_at) * 1000, 3),
            "cpu_ms": self.cpu_us / 1000,
            "max_rss_bytes": self.peak_kib * 1024,
            "evidence": proof,
            "survivors": self.survivors() if self.left is not False else [],
        }
        if self.orphaned:
            self.left = bool(self.outcome["survivors"])
        self.request.argv, self.request.env = self.request.argv[:1], {}
        self.host.ended(self)
        self._tell_end()

    def _fail(self, failure: Failure) -> None:
        self.failure, self.state, self.left = failure, "ended", False
        for output in self.outputs:
            output.close_pipe()
        self.stdin.close()
        self.request.argv, self.request.env = self.request.argv[:1], {}
        self.host.ended(self)
        self._tell_end()

    def members(self, table: dict[int, tuple[int, str]] | None = None) -> set[int]:
        """Living processes of the run, by parentage; `table` spares a look at /proc."""
        singles = self._singles()
        return linux.descendants(self._roots() | singles, table or linux.processes()) | singles

    def survivors(self) -> list[dict[str, Any]]:
        return [
            {"pid": pid, "command": linux.command_of(pid)} for pid in sorted(self.members())[: protocol.MAX_SURVIVORS]
        ]

    def drain_survivors(self) -> None:
        """What survivors of an ended run print goes nowhere, a little at a time; closing would kill them by SIGPIPE."""
        if self.orphaned and not self.members():
            self.left = False
        for output in self.outputs:
            if output.fd >= 0:
                data = b""
                try:
                    data = os.read(output.fd, protocol.CHUNK)
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                if not data or self.left is False:
                    output.close_pipe()
