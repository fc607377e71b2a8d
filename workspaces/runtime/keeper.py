"""The keeper: a small process, forked ahead, under which everything that a run starts stays together.

It is a subreaper, so a daemon of the run becomes its child and not PID 1's: whose a process is can be told by parentage,
never by group, session or environment, which a program can change. It has one run at a time. When nothing of that is
left it may take the next one: a start then costs no fork at all, since posix_spawn copies nothing.

It is a fork of the runtime, hence not dumpable: a program of the same uid can kill or stop it but neither read it nor
write into its descriptors. When it is killed, its processes come to PID 1, which then waits for the main process itself.
What else equal uids allow (limits, priority, affinity of another process) would be handed down to the next run, so the
runtime compares these before it lets a keeper go on.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import marshal
import os
import struct
from mmap import mmap

from . import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# Keeper -> runtime: kind, pid or part or wait code, errno or status, CPU microseconds, peak memory in KiB
REPORT = struct.Struct("=ciiqq")
STARTED, FAILED, EXITED, REAPED = b"S", b"F", b"X", b"R"
PART_CWD, PART_PROGRAM = 0, 1
_LENGTH = struct.Struct("=I")
_FDS = struct.Struct("=3i")
_ALL_SIGNALS = [number for number in _signal.valid_signals() if number not in (_signal.SIGKILL, _signal.SIGSTOP)]


class Keeper:
    """The runtime's end: `sock` takes requests and brings reports."""

    def __init__(self, pid: int, sock: _socket.socket, began: mmap) -> None:
        self.pid, self.sock = pid, sock
        self._began = began  # shared with the keeper, which sets it on the last line before it starts the program
        self._print = linux.fingerprint(pid)
        self.alive = True
        self.killed = False
        self.idle_since = 0.0

    @property
    def began(self) -> bool:
        """Whether the program may have started; before that the request can be handed to another keeper."""
        return self._began[0] != 0

    @property
    def dead(self) -> bool:
        """Whether an idle keeper is heard: it has nothing to say, so that is its end."""
        try:
            self.sock.recv(REPORT.size, _socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def reset(self) -> bool:
        """Ready for another run; False when somebody has changed what the next program would inherit."""
        self._began[0] = 0
        return self.alive and linux.fingerprint(self.pid) == self._print


def pipes() -> tuple[int, int, int, int, int, int]:
    """Both ends of three pipes, ours not blocking; OSError, and nothing left open, when descriptors run out."""
    made: list[int] = []
    try:
        for _ in range(3):
            made.extend(os.pipe())
    except OSError:
        for fd in made:
            os.close(fd)
        raise
    in_read, in_write, out_read, out_write, err_read, err_write = made
    for fd in (in_write, out_read, err_read):
        os.set_blocking(fd, False)
    return in_read, in_write, out_read, out_write, err_read, err_write


def request(argv: list[bytes], env: dict[bytes, bytes], cwd: bytes) -> bytes:
    body = marshal.dumps((argv, env, cwd))
    return _LENGTH.pack(len(body)) + body


def hand_over(keeper: Keeper, data: bytes, stdio: tuple[int, int, int]) -> int:
    """Sends the first bytes of a request together with the program's descriptors; returns how many bytes went."""
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _FDS.pack(*stdio))
    return keeper.sock.sendmsg([data], [rights], _socket.MSG_NOSIGNAL)


def fork_keeper(workdir_fd: int, resident: bool) -> Keeper:
    """Forks a keeper that waits for its run; OSError (EAGAIN) when the pids limit is reached, EMFILE without descriptors.

    `resident`: the runtime is PID 1; otherwise the keeper has to end its run by itself when the runtime dies.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    began = mmap(-1, 1)
    runtime_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _keep(theirs, began, workdir_fd, 0 if resident else runtime_pid)
        finally:
            os._exit(70)  # not reached unless something broke; never back into the runtime's loop
    theirs.close()
    ours.setblocking(False)
    return Keeper(pid, ours, began)


def _keep(sock: _socket.socket, began: mmap, workdir_fd: int, runtime_pid: int) -> NoReturn:
    _close_all_but({0, 1, 2, sock.fileno(), workdir_fd})
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    linux.set_name(b"primer-keeper")
    if runtime_pid:  # all signals but KILL and STOP are ignored, as inherited: `kill -TERM -1` spares the keepers
        _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        _signal.signal(_signal.SIGUSR1, _end_run)
        linux.prctl(linux.PR_SET_PDEATHSIG, _signal.SIGUSR1)
        if os.getppid() != runtime_pid:
            os._exit(0)
    while True:
        body, stdio = _receive(sock)
        if body is None:
            os._exit(0)
        main = _begin(sock, began, workdir_fd, body, stdio)
        for fd in stdio:
            os.close(fd)
        if main and not _reap(main, sock):
            os._exit(0)  # the runtime reads this end as "nothing of the run is there any more"


def _close_all_but(keep: set[int]) -> None:
    """The listening socket, connections and pipes must not live on in here."""
    low = 0
    for fd in sorted(keep):
        if low < fd:  # closerange(0, 0) closes everything: its upper end, -1, wraps around
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 65536)


def _end_run(*_: object) -> None:
    """The runtime is gone (outside a container nothing else would end its runs)."""
    own = {os.getpid()}
    while True:
        seen: set[int] = set()
        while True:  # stopped processes keep their slots: a fork bomb cannot refill them
            left = linux.descendants(own, linux.processes())
            if left <= seen:
                break
            for pid in left - seen:
                linux.send_signal(pid, _signal.SIGSTOP)
            seen |= left
        for pid in left:
            linux.send_signal(pid, _signal.SIGKILL)
        try:
            while os.waitpid(-1, 0):
                pass
        except ChildProcessError:
            os._exit(0)


def _receive(sock: _socket.socket) -> tuple[bytes | None, tuple[int, ...]]:
    """A request and its three descriptors; None at the end of the socket."""
    data, rights, _, _ = sock.recvmsg(65536, _socket.CMSG_SPACE(_FDS.size), _socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None, ()
    stdio = _FDS.unpack(rights[0][2][: _FDS.size])
    while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
        part = sock.recv(262144)
        if not part:
            return None, ()
        data += part
    return data[_LENGTH.size :], stdio


def _begin(sock: _socket.socket, began: mmap, workdir_fd: int, body: bytes, stdio: tuple[int, ...]) -> int:
    """Starts the program and tells its pid, or tells why not and returns 0."""
    argv, env, cwd = marshal.loads(body)
    part = PART_CWD
    try:
        _enter(workdir_fd)
        if cwd:
            os.chdir(cwd)
        part = PART_PROGRAM
        began[0] = 1
        main = _spawn(argv, env, stdio)
    except OSError as error:
        sock.sendall(REPORT.pack(FAILED, part, error.errno or errno.EIO, 0, 0))
        return 0
    sock.sendall(REPORT.pack(STARTED, main, 0, 0, 0))
    return main


def _enter(workdir_fd: int) -> None:
    """Makes the workspace the working directory, also after a program has taken its owner's permissions away."""
    try:
        os.fchdir(workdir_fd)
    except PermissionError:
        if not linux.regain(workdir_fd):
            raise
        os.fchdir(workdir_fd)


def _spawn(argv: list[bytes], env: dict[bytes, bytes], stdio: tuple[int, ...]) -> int:
    """Starts the program in a session of its own and returns its pid; OSError tells why it cannot be executed."""
    # stdio are numbers above 2 (0, 1, 2 are the runtime's own), so the copies cannot overwrite each other
    actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(stdio)]
    failure = OSError(errno.ENOENT, "not found")
    for path in _candidates(argv[0], env):
        try:
            try:
                return os.posix_spawn(
                    path, argv, env, file_actions=actions, setsid=True, setsigdef=_ALL_SIGNALS, setsigmask=()
                )
            except NotImplementedError:  # a libc without POSIX_SPAWN_SETSID: its own group is the next best
                return os.posix_spawn(
                    path, argv, env, file_actions=actions, setpgroup=0, setsigdef=_ALL_SIGNALS, setsigmask=()
                )
        except OSError as error:
            if error.errno == errno.EACCES and os.path.isdir(path):
                error = IsADirectoryError(errno.EISDIR, "is a directory")
            elif error.errno == errno.ENOENT and os.path.exists(path):
                error = OSError(errno.ELIBBAD, "its interpreter is missing")
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EISDIR):
                raise error from None
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) or path == argv[0]:
                failure = error
    raise failure


def _candidates(program: bytes, env: dict[bytes, bytes]) -> list[bytes]:
    """Where the program may be. Looked for first: each attempt to start what is not there would cost a process."""
    if b"/" in program:
        return [program]
    path = env.get(b"PATH") or b"/usr/local/bin:/usr/bin:/bin"
    found = [(directory or b".") + b"/" + program for directory in path.split(b":")]
    return [name for name in found if os.path.lexists(name)]


def _reap(main: int, sock: _socket.socket) -> bool:
    """Waits for every process of the run; True when nothing outlived the main process, so that another run may come."""
    cpu_us = peak_kib = 0
    options = 0
    while True:
        try:
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | options)
        except ChildProcessError:
            if options:
                sock.sendall(REPORT.pack(REAPED, 0, 0, cpu_us, peak_kib))
            return options != 0
        if seen is None:  # the main process is gone, others are left
            sock.sendall(REPORT.pack(REAPED, 1, 0, cpu_us, peak_kib))
            options = 0
            continue
        if seen.si_pid == main:  # told before it is reaped: a keeper killed in between loses no status
            sock.sendall(REPORT.pack(EXITED, seen.si_code, seen.si_status, 0, 0))
        _, _, usage = os.wait4(seen.si_pid, 0)
        cpu_us += int((usage.ru_utime + usage.ru_stime) * 1e6)
        peak_kib = max(peak_kib, int(usage.ru_maxrss))
        if seen.si_pid == main:
            options, main = os.WNOHANG, -1
