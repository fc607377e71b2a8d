"""The program that looks around inside a sandbox. A source text: it runs there, on any python 3.9, within milliseconds."""

from __future__ import annotations

from typing import Final

# The answer's keys, all strings; a fact that could not be read is "unknown …".
KEYS: Final = (
    *("hostname", "engine_socket", "route", "reached", "dns", "capabilities", "no_new_privs", "seccomp", "root", "uid"),
    *("pid1", "mount", "memory", "pids", "cpu", "fsize"),
)

# C modules instead of `json` and `socket`: their imports would double the time. Every fact is caught on its own, so that
# one odd kernel file does not hide the rest.
SOURCE: Final = r"""
import os, _socket as s, select
from _json import encode_basestring_ascii as quote
def read(path):
    with open(path) as f: return f.read().strip()
def first(*paths):
    for p in paths:
        try: return read(p)
        except OSError: pass
    return "unknown: no such file"
def status(): return dict(l.split(":\t", 1) for l in read("/proc/self/status").split("\n") if ":\t" in l)
def routes(): return [l.split() for l in read("/proc/net/route").split("\n")[1:] if l.strip()]
def route():
    v4 = ["%s via %s" % (r[0], ip(r[2])) for r in routes()]
    try: v6 = [l.split() for l in read("/proc/net/ipv6_route").split("\n") if l.strip()]
    except OSError: v6 = []
    v6 = ["%s v6" % r[-1] for r in v6 if r[-1] != "lo"]
    return ", ".join(v4 + v6)[:150] or "none"
def ip(x):
    n = int(x, 16)
    return "%d.%d.%d.%d" % (n & 255, n >> 8 & 255, n >> 16 & 255, n >> 24)
def engine_socket():
    places = ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
        "/var/run/crio/crio.sock", "/run/crio/crio.sock", "/var/lib/docker")
    return ", ".join(p for p in places if os.path.lexists(p)) or "absent"
def dial(kind, address, data=None):
    c = s.socket(s.AF_INET6 if ":" in address[0] else s.AF_INET, kind)
    c.setblocking(False)
    try:
        c.connect(address)
        if data: c.send(data)
    except BlockingIOError: pass
    except OSError as e:
        c.close()
        return None if e.errno != 111 else "refused"
    return c
def reached():
    # A refusal is an answer too: somebody is there. Silence for a quarter of a second is none.
    targets = [(ip(r[2]), 1) for r in routes() if r[2] != "00000000"]
    targets += [("172.17.0.1", 1), ("169.254.169.254", 80)]
    found, waiting = [], {}
    for t in targets:
        c = dial(s.SOCK_STREAM, t)
        if c == "refused": found.append(t[0])
        elif c: waiting[c.fileno()] = c, t
    left = 5
    while waiting and left:
        left -= 1
        for fd in select.select([], list(waiting), [], 0.05)[1]:
            c, t = waiting.pop(fd)
            if c.getsockopt(s.SOL_SOCKET, s.SO_ERROR) in (0, 111): found.append(t[0])
    return ", ".join(sorted(set(found)))[:150] or "nothing answers"
def dns():
    # One question for a name that cannot exist; NXDOMAIN is an answer from outside, SERVFAIL is the engine's own.
    try: lines = read("/etc/resolv.conf").split("\n")
    except OSError: lines = []
    servers = [l.split()[1] for l in lines if l.startswith("nameserver") and len(l.split()) > 1] or ["127.0.0.1"]
    ask = b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\x0cprimer-probe\x07invalid\0\0\1\0\1"
    found = []
    for server in servers[:3]:
        c = dial(s.SOCK_DGRAM, (server, 53), ask)
        if c is None or c == "refused" or not select.select([c.fileno()], [], [], 0.25)[0]: continue
        try: answer = c.recv(512)
        except OSError: continue
        if len(answer) > 3 and answer[3] & 15 in (0, 3): found.append(server)
    return ", ".join(found) or "nothing answers"
def capabilities():
    held = {k: v for k, v in status().items() if k.startswith("Cap") and int(v, 16)}
    return " ".join("%s=%s" % i for i in held.items()) or "none"
def root():
    for path in ("/", "/etc", "/usr", "/opt", "/root", "/var/tmp"):
        try: fd = os.open(path + "/.primer-probe", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        except OSError: continue
        os.close(fd); os.unlink(path + "/.primer-probe")
        return "wrote " + path
    return "read-only" if os.statvfs("/").f_flag & os.ST_RDONLY else "writable mount"
def uid():
    more = [str(g) for g in os.getgroups() if g != os.getgid()]
    return "%d:%d" % (os.getuid(), os.getgid()) + (" and groups " + ",".join(more) if more else "")
def pid1():
    for name in ("environ", "mem", "maps"):
        try: os.close(os.open("/proc/1/" + name, os.O_RDONLY))
        except OSError: continue
        return name + " opens"
    return "closed"
def mount():
    here = os.path.realpath(os.getcwd())
    for line in read("/proc/self/mounts").split("\n"):
        f = line.split()
        if len(f) > 3 and f[1] == here:
            has = f[3].split(",")
            return ",".join(o for o in ("nosuid", "nodev") if o in has) or "neither nosuid nor nodev"
    return "unknown: no mount of its own"
def cpu():
    both = first("/sys/fs/cgroup/cpu.max").split()
    if both[0].startswith("unknown"):
        both = [first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), first("/sys/fs/cgroup/cpu/cpu.cfs_period_us")]
    if both[0] in ("max", "-1") or both[0].startswith("unknown"): return both[0]
    return "%g" % (int(both[0]) / int(both[1]))
def fsize():
    import resource
    return str(resource.getrlimit(resource.RLIMIT_FSIZE)[0])
facts = {
    "hostname": lambda: os.uname().nodename, "engine_socket": engine_socket, "route": route, "reached": reached, "dns": dns,
    "capabilities": capabilities, "no_new_privs": lambda: status()["NoNewPrivs"], "seccomp": lambda: status()["Seccomp"],
    "root": root, "uid": uid, "pid1": pid1,
    "mount": mount, "cpu": cpu, "fsize": fsize,
    "memory": lambda: first("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    "pids": lambda: first("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"),
}
out = []
for key, look in facts.items():
    try: value = look()
    except Exception as e: value = "unknown: " + type(e).__name__
    out.append(quote(key) + ":" + quote(value[:200]))
print("{" + ",".join(out) + "}")
"""
