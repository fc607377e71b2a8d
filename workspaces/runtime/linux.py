"""System calls that python lacks, and what /proc says about processes."""

# ruff: noqa: SIM105 - contextlib would cost the sandbox half a megabyte
from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` brings enum
import ctypes
import errno
import os
import resource
import stat

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
RESOLVE = 0x02 | 0x04 | 0x08  # NO_MAGICLINKS | NO_SYMLINKS | BENEATH
_RENAME_NOREPLACE = 1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LIMITS = 16  # RLIM_NLIMITS
_SYS_OPENAT2 = 437  # the same on every architecture
_SYS_RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276, "ppc64le": 357, "s390x": 347, "armv7l": 382}

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def set_name(name: bytes) -> None:
    """What `ps` shows; at most 15 bytes."""
    buffer = ctypes.create_string_buffer(name)
    _libc.prctl(
        PR_SET_NAME, ctypes.cast(buffer, ctypes.c_void_p), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)
    )


def trim_heap() -> None:
    """Gives freed memory back to the kernel where libc can (glibc): compiling at start leaves a megabyte of it."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def _syscall(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def openat2(dir_fd: int, path: bytes, flags: int, mode: int) -> int:
    """Opens beneath `dir_fd` without following any link; OSError with ENOSYS where the kernel lacks the call."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, RESOLVE)
    path_pointer = ctypes.c_char_p(path)
    return _syscall(_SYS_OPENAT2, ctypes.c_long(dir_fd), path_pointer, ctypes.byref(how), ctypes.c_size_t(24))


def rename_noreplace(src_fd: int, src: bytes, dst_fd: int, dst: bytes) -> None:
    """Renames and never replaces (EEXIST); where the call is missing a look before the rename has to do."""
    number = _SYS_RENAMEAT2.get(os.uname().machine)
    if number is not None:
        try:
            fds = ctypes.c_long(src_fd), ctypes.c_long(dst_fd)
            flags = ctypes.c_long(_RENAME_NOREPLACE)
            _syscall(number, fds[0], ctypes.c_char_p(src), fds[1], ctypes.c_char_p(dst), flags)
            return
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL):
                raise
    try:
        os.stat(dst, dir_fd=dst_fd, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd)
        return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def read_small(path: str, limit: int = 4096) -> bytes:
    """The first bytes of a small file (procfs, cgroup), b"" when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, limit)
    except OSError:
        return b""
    finally:
        os.close(fd)


def regain(fd: int) -> bool:
    """Gives a directory of our own u+rwx again, which code of our uid may have taken away; whether that changed it.

    Through /proc, because a descriptor that only names a directory (O_PATH) takes no fchmod; it leads to what is open and
    follows no link that lies there now.
    """
    info = os.fstat(fd)
    if info.st_uid != os.geteuid() or not stat.S_ISDIR(info.st_mode) or info.st_mode & 0o700 == 0o700:
        return False
    try:
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(info.st_mode) | 0o700)
    except OSError:
        return False  # a file system that is read-only: what was refused stays refused
    return True


def processes() -> dict[int, tuple[int, str]]:
    """Every process that can be seen: pid -> (parent, state letter)."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            line = read_small(f"/proc/{name}/stat", 512)
            tail = line.rpartition(b")")[2].split()  # the command may hold spaces and parentheses
            if len(tail) > 1:
                table[int(name)] = (int(tail[1]), tail[0].decode("ascii", "replace"))
    return table


def descendants(roots: set[int], table: dict[int, tuple[int, str]]) -> set[int]:
    """All living processes below `roots`, by parentage; the roots themselves and zombies are not in it."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid not in found and pid not in roots:
                found.add(pid)
                queue.append(pid)
    return {pid for pid in found if table[pid][1] not in "ZX"}


def kin_of(pid: int) -> tuple[int, int, int] | None:
    """parent, session and start (ticks since boot) of a process, also of one that has ended and was not yet waited for."""
    tail = read_small(f"/proc/{pid}/stat", 1024).rpartition(b")")[2].split()
    return (int(tail[1]), int(tail[3]), int(tail[19])) if len(tail) > 19 else None


def fingerprint(pid: int) -> tuple[object, ...]:
    """What a process hands down to its children and others of its uid can change: limits, priority, scheduling."""
    try:
        limits = [resource.prlimit(pid, number) for number in range(_LIMITS)]
        return (*limits, os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), os.sched_getaffinity(pid))
    except OSError:
        return ()


def command_of(pid: int) -> str:
    """How a process calls itself (hostile text), at most 200 characters."""
    line = read_small(f"/proc/{pid}/cmdline", 800).replace(b"\0", b" ").strip()
    if not line:
        line = read_small(f"/proc/{pid}/comm", 64).strip()
    return line.decode("utf-8", "replace")[:200]


def send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # gone already, or a setuid program of the image: what stays is counted afterwards


def raise_oom_score(pid: int, score: int) -> None:
    """Programs are to be the kernel's choice before the runtime; possible only after exec has made them dumpable."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return  # gone already
    try:
        os.write(fd, b"%d" % score)
    except OSError:
        pass  # set back by nobody: a program of another uid, or of an execute-only file
    finally:
        os.close(fd)


def ignore_signals() -> None:
    """No handler at all, Python's own for SIGINT included: PID 1 then gets no signal from inside its namespace.

    Ignored rather than default: the kernel treats both alike for PID 1, and keepers inherit it without a call.
    """
    for number in _signal.valid_signals():
        if number not in (_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGCHLD):
            try:
                _signal.signal(number, _signal.SIG_IGN)
            except OSError:
                pass  # signals that libc keeps for itself
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # ignored, it would take exit statuses away
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
