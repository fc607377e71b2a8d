"""The engine's side of the container provider against engines that are dead, slow, or lie."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from primer_site.errors import Invalid
from tests.providers.fake_engine import (
    INFO,
    VERSION,
    Answer,
    FakeEngine,
    chunked,
    frame,
    http,
    ok,
    silence,
    stream,
    unix,
)
from workspaces.providers import engine_check
from workspaces.providers.base import (
    ChannelClosed,
    EngineForbidden,
    EngineFull,
    EngineUnavailable,
    ImageNotFound,
    ProviderError,
    Ref,
    SandboxSpec,
)
from workspaces.providers.container import ContainerProvider
from workspaces.providers.engine import Busy, Missing, translate

Make = Callable[[dict[str, Answer]], AbstractAsyncContextManager[ContainerProvider]]
REF = Ref("container", "ws-0123456789abcdef", 1, container_id="c" * 64)
SPEC = SandboxSpec("inst", REF.workspace_id, 1, image="primer/workspace-runtime:1.0")


@pytest.fixture
def fake(tmp_path: Path) -> Make:
    @asynccontextmanager
    async def make(answers: dict[str, Answer]) -> AsyncIterator[ContainerProvider]:
        async with unix(FakeEngine(answers), tmp_path / "engine.sock") as config:
            provider = ContainerProvider(config, {}, instance_id="inst")
            yield provider
            await provider.close()

    return make


async def dead(tmp_path: Path, name: str = "none.sock") -> ContainerProvider:
    return ContainerProvider(
        {"connection": {"kind": "socket", "socket_path": str(tmp_path / name)}}, {}, instance_id="inst"
    )


async def test_an_engine_that_is_not_there_is_unreachable_with_the_next_step(tmp_path: Path) -> None:
    check = await (await dead(tmp_path)).check()
    assert check.health == "unreachable"
    assert check.reasons[0].startswith(f"No container engine answers at {tmp_path}/none.sock. Start the engine")
    assert check.enforces == {}


async def test_a_missing_socket_and_a_plain_file_get_the_same_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    missing, plain = [await (await dead(tmp_path, name)).check() for name in ("none", "file")]
    assert missing.reasons[0].replace("/none", "/file") == plain.reasons[0]


@pytest.mark.parametrize("verb", ["start", "connect", "status", "stop", "destroy", "discover", "check_image"])
async def test_no_verb_takes_a_dead_engine_for_an_answer(tmp_path: Path, verb: str) -> None:
    provider = await dead(tmp_path)
    arguments = {"start": [SPEC], "check_image": [SPEC], "discover": []}.get(verb, [REF])
    with pytest.raises(EngineUnavailable) as caught:
        await getattr(provider, verb)(*arguments)
    assert str(tmp_path) not in caught.value.detail  # told to members, who may not know where engines are
    assert str(tmp_path) in caught.value.log
    await provider.close()


def test_a_refused_socket_says_how_to_be_let_in() -> None:
    error = translate(ConnectionError("Connection aborted.", PermissionError(13, "Permission denied")), "/x.sock")
    assert isinstance(error, EngineForbidden)
    assert not error.retryable
    assert error.detail == "The container engine refused access to /x.sock."


@pytest.mark.parametrize(
    ("status", "kind"), [("404 Not Found", Missing), ("409 Conflict", Busy), ("500 Oops", ProviderError)]
)
async def test_the_status_decides_and_engine_text_goes_to_the_log_only(
    fake: Make, status: str, kind: type[Exception]
) -> None:
    async with fake({"/json": http(b'{"message": "secret /var/lib/docker/path"}', status)}) as provider:
        with pytest.raises(ProviderError) as caught:
            await provider.engine.call("inspect_container", "x")
        assert type(caught.value) is kind
        assert "/var/lib" not in str(caught.value.to_problem())
        assert "/var/lib" in caught.value.log


LIES: dict[str, dict[str, Answer]] = {
    "html": {"/version": http(b"<html>hello</html>", kind="text/html")},
    "a list": {"/version": ok([1, 2])},
    "no version": {"/version": ok({})},
    "a version that is none": {"/version": ok({**VERSION, "ApiVersion": "latest"})},
    "info of wrong types": {"/info": ok({**INFO, "SecurityOptions": 7})},
    "info without limits": {"/info": ok({"Driver": "x", "SecurityOptions": []})},
    "null": {"/info": ok(None)},
    "a cut body": {"/info": http(b"x" * 10).replace(b"Length: 10", b"Length: 9999")},
    "no http": {"/version": b"\x15\x03\x01\0\x02\x02F"},
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_engine_that_lies_is_unreachable_and_never_a_traceback(fake: Make, lie: str) -> None:
    async with fake(LIES[lie]) as provider:
        check = await provider.check()
    assert check.health == "unreachable"
    assert check.reasons[0].endswith(".")


async def test_an_engine_that_never_answers_is_unreachable_in_time(fake: Make) -> None:
    async with fake({"/info": silence}) as provider:
        check = await engine_check.check(provider.engine, timeout_s=0.2)
    assert check.reasons[0].endswith("did not answer within 0.2 s.")


async def test_an_answer_without_an_end_is_cut_off(fake: Make) -> None:
    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while True:
            writer.write(b" " * 65536)
            await writer.drain()

    async with fake({"/info": endless}) as provider:
        assert (await provider.check()).health == "unreachable"


async def test_a_healthy_engine_is_described(fake: Make) -> None:
    async with fake({}) as provider:
        check = await provider.check()
    assert (check.health, check.reasons) == ("healthy", ())
    assert check.engine == {
        "name": "docker",
        "version": "99.0",
        "api_version": "1.41",
        "storage_driver": "overlay2",
        "cgroup": "v2",
        "runtimes": ["runc"],
        "security": ["seccomp"],
        "runc": "1.3.9",
        "cpus": 2,
        "memory_bytes": 8 * 1024**3,
        "limit_reasons": {"disk": engine_check.WHY_LOOSE["disk", "soft"]},
    }
    assert check.enforces == {
        "cpu": "enforced",
        "memory": "enforced",
        "pids": "enforced",
        "disk": "soft",
        "egress": "enforced",
    }


@pytest.mark.parametrize(
    ("runc", "sentences"),
    [("1.1.5+ds1", 1), ("1.2.7", 1), ("1.2.8", 0), ("1.3.2", 1), ("1.3.3", 0), ("1.4.0", 0), ("2.0", 0), ("", 0)],
)
async def test_an_old_runc_is_a_sentence_and_not_a_verdict(fake: Make, runc: str, sentences: int) -> None:
    version = {**VERSION, "Components": [{"Name": "runc", "Version": runc}]}
    async with fake({"/version": ok(version)}) as provider:
        check = await provider.check()
    assert (check.health, len(check.reasons)) == ("healthy", sentences)


@pytest.mark.parametrize(
    ("missing", "limit", "worth"),
    [
        ("PidsLimit", "pids", "unavailable"),
        ("MemoryLimit", "memory", "unavailable"),
        ("SwapLimit", "memory", "soft"),
        ("CpuCfsQuota", "cpu", "unavailable"),
    ],
)
async def test_a_limit_that_the_kernel_lacks_is_never_shown_as_held(
    fake: Make, missing: str, limit: str, worth: str
) -> None:
    async with fake({"/info": ok({**INFO, missing: False})}) as provider:
        check = await provider.check()
    assert (check.health, check.enforces[limit]) == ("degraded", worth)
    assert check.reasons == (check.engine["limit_reasons"][limit],)
    assert check.reasons[0].startswith("The engine's kernel")


async def test_a_full_disk_refuses_creates_and_degrades_the_engine(
    fake: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    full = os.statvfs_result([*real[:4], 100, *real[5:]])
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    image = {"Id": "sha256:x", "Config": {"Labels": {"primer.runtime": engine_runtime()}}}
    answers: dict[str, Answer] = {"/info": ok({**INFO, "DockerRootDir": str(tmp_path)}), "1.0/json": ok(image)}
    async with fake(answers) as provider:
        assert (await provider.check()).health == "degraded"
        with pytest.raises(EngineFull):
            await provider.start(SPEC)


def engine_runtime() -> str:
    from workspaces.runtime import build

    return build.digest()


REMOTE = SandboxSpec("inst", REF.workspace_id, 1, image="registry.example/team/image:2")


async def test_a_pull_that_the_registry_refuses_is_an_image_that_is_not_found(fake: Make) -> None:
    refused = chunked({"status": "Pulling from team/image"}, {"error": "denied: see /etc/docker/config.json"})
    async with fake({"/images/create": refused}) as provider:
        assert await provider.lacks_image(REMOTE)
        with pytest.raises(ImageNotFound) as caught:
            await provider.fetch_image(REMOTE)
    assert "cannot be pulled" in caught.value.detail
    assert "/etc/docker" not in caught.value.detail
    assert "denied" in caught.value.log


async def test_a_pull_may_take_longer_than_one_answer(fake: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workspaces.providers.engine.ANSWER_LIMIT", 100)  # a limit that an ordinary answer would break
    progress = chunked(*({"status": "Downloading", "progress": "=" * count} for count in range(50)))
    async with fake({"/images/create": progress, "/version": ok({"ApiVersion": "1.41"})}) as provider:
        await provider.fetch_image(REMOTE)


async def test_a_pull_that_is_cut_does_not_hold_its_caller(fake: Make) -> None:
    async with fake({"/images/create": silence}) as provider:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await provider.fetch_image(REMOTE)


async def test_only_a_name_with_a_registry_can_be_pulled(fake: Make) -> None:
    async with fake({}) as provider:
        assert not await provider.lacks_image(SPEC)


async def test_an_unknown_image_is_said_at_once_and_how_to_get_ours(fake: Make) -> None:
    async with fake({}) as provider:
        with pytest.raises(ImageNotFound) as caught:
            await provider.start(SPEC)
    assert caught.value.detail == "The image primer/workspace-runtime:1.0 is not on the engine."
    assert caught.value.hint_text == "Build it on the server: primer image build"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (http(b"{}", "404 Not Found"), "did not open a stream"),
        (http(b"{}", "409 Conflict"), "did not open a stream"),
        (stream(frame(1, b"OCI runtime exec failed: exec failed: unable to start")), "is not the runtime"),
        (stream(frame(2, b"exec: python3: not found")), "did not answer"),
        (stream(b"HTTP/1.1 500 Internal"), "format"),
        (stream(frame(1, b"x" * 100, length=2**32 - 1)), "not the runtime"),
        (stream(frame(1, b"")[:5]), "did not answer"),
        (b"garbage\r\n\r\n", "did not open a stream"),
        (stream(), "did not answer"),
    ],
)
async def test_what_is_not_the_runtime_on_the_stream_is_a_closed_channel(
    fake: Make, answer: bytes, sentence: str
) -> None:
    async with fake({"/exec": ok({"Id": "e" * 64}), "/start": answer}) as provider:
        with pytest.raises(ChannelClosed, match=sentence):
            await provider.connect(REF)


async def test_frames_are_joined_across_any_cut_and_stderr_is_left_out(fake: Make) -> None:
    sent = b"".join([frame(1, b"ab"), frame(2, b"noise"), frame(1, b""), frame(1, b"cdef")])

    async def dribble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in stream(sent):
            writer.write(bytes([byte]))
            await writer.drain()

    async with fake({"/start": dribble}) as provider:
        channel = await provider.engine.open_exec("e" * 64)
        got = b""
        while part := await channel.read(3):
            got += part
        assert (got, channel.error_tail) == (b"abcdef", b"noise")
        await channel.close()


async def test_a_claimed_frame_of_four_gigabytes_gives_what_came_and_holds_no_memory(fake: Make) -> None:
    async with fake({"/start": stream(frame(1, b"only this", length=2**32 - 1))}) as provider:
        channel = await provider.engine.open_exec("e" * 64)
        assert await channel.read(2**20) == b"only this"
        assert await channel.read(2**20) == b""
        await channel.close()


@pytest.mark.parametrize("runtime", ["podman", "containerd", "crio"])
def test_another_runtime_is_refused_with_a_sentence(runtime: str) -> None:
    with pytest.raises(Invalid) as caught:
        ContainerProvider({"runtime": runtime}, {}, instance_id="inst")
    assert caught.value.errors[0].field == "config.runtime"


@pytest.mark.parametrize(
    ("connection", "field"),
    [
        ({"kind": "ssh"}, "kind"),
        ({"kind": "socket", "socket_path": "relative"}, "socket_path"),
        ({"kind": "socket", "socket_path": "/a\0b"}, "socket_path"),
        ({"kind": "tcp"}, "url"),
        ({"kind": "tcp", "url": "ftp://x"}, "url"),
        ({"kind": "tcp", "url": "tcp://x:99999"}, "url"),
        ({"kind": "tcp", "url": "http://x", "tls": {"ca": "x"}}, "url"),
        ({"kind": "tcp", "url": "tcp://x", "tls": {"cert": "x"}}, "tls"),
    ],
)
def test_a_connection_that_cannot_be_is_refused_by_field(connection: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        ContainerProvider({"connection": connection}, {}, instance_id="inst")
    assert caught.value.errors[0].field == f"config.connection.{field}"


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]"])
async def test_an_engine_on_a_link_local_address_is_refused(host: str) -> None:
    provider = ContainerProvider({"connection": {"kind": "tcp", "url": f"tcp://{host}:2375"}}, {}, instance_id="inst")
    with pytest.raises(Invalid, match="link-local"):
        await provider.status(REF)
    await provider.close()
