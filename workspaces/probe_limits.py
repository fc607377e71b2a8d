"""The program that meets the limits from inside a sandbox. A source text, like `probe.py`: it runs there, on any python 3.9.

All that it makes ends with it: files are unlinked before they hold a byte, and what counts against the limit of processes
are threads of its own. So a server that is killed meanwhile leaves nothing behind.
"""

from __future__ import annotations

from typing import Final

# The answer's keys, all whole numbers: an errno (0: it went well), a count, or bytes; UNTRIED where nothing was done.
KEYS: Final = (
    *("tasks", "counted", "forked", "below", "above", "filled", "used", "full"),
)  # fmt: skip
UNTRIED: Final = -1
NO_ROOM: Final = -2  # filling the disk would meet the limit of memory first
STACK_BYTES: Final = 64 * 1024  # of a thread, of which it touches a page or two
SPARE_BYTES: Final = 32 * 1024 * 1024  # of memory that stay free while a disk in memory is filled

# argv: processes (0: not tried), bytes of a file, bytes of memory with a disk in memory (0: it is not filled).
SOURCE: Final = r"""
import os, sys, _thread
limit, size, memory = (int(a) for a in sys.argv[1:4])
got = dict.fromkeys("tasks counted forked below above filled used full".split(), -1)
def attempt(act, *args):
    try: act(*args)
    except OSError as e: return e.errno or -1
    return 0
def number(*paths):
    for p in paths:
        try:
            with open(p) as f: return int(f.read())
        except (OSError, ValueError): pass
    return -1
def nameless():
    try: return os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError: pass  # a file system that has none
    name = ".primer-probe-%d" % os.getpid()
    fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.unlink(name)
    return fd
def one_file():
    # A hole and one block: the size of a file costs nothing.
    fd = nameless()
    got["below"] = attempt(os.pwrite, fd, b"x", size - 1)
    got["above"] = attempt(os.pwrite, fd, b"x", size)
    os.close(fd)
def whole_disk():
    fds = nameless(), nameless()
    v = os.fstatvfs(fds[0])
    got["used"], got["filled"] = (v.f_blocks - v.f_bfree) * v.f_frsize, 0
    taken = number("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
    if taken < 0 or min(v.f_bavail * v.f_frsize, size) + taken + SPARE > memory: got["full"] = -2
    block = bytes(1 << 20)
    while got["full"] == -1 and got["filled"] <= size:
        # Two files, so that the limit of one is not met instead.
        try: got["filled"] += os.write(fds[2 * got["filled"] > size], block)
        except OSError as e: got["full"] = e.errno or -1
    for fd in fds: os.close(fd)
def another():
    child = os.fork()
    if not child: os._exit(0)
    os.waitpid(child, 0)
def processes():
    gate = _thread.allocate_lock()
    gate.acquire()
    _thread.stack_size(STACK)
    got["tasks"] = 1
    for again in range(5):  # somebody else's process may have ended between the two refusals
        while got["tasks"] <= limit:
            try: _thread.start_new_thread(gate.acquire, ())
            except (RuntimeError, MemoryError): break
            got["tasks"] += 1
        got["counted"] = number("/sys/fs/cgroup/pids.current", "/sys/fs/cgroup/pids/pids.current")
        got["forked"] = attempt(another)
        if got["forked"] or got["tasks"] > limit: break
attempt(one_file)
if memory: attempt(whole_disk)
if limit: processes()
os.write(1, ("{" + ",".join('"%s":%d' % i for i in got.items()) + "}").encode())
os._exit(0)
""".replace("STACK", str(STACK_BYTES)).replace("SPARE", str(SPARE_BYTES))
