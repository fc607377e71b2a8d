"""A file that is written to while it is downloaded: what arrives is of one version, or it does not arrive whole."""

from __future__ import annotations

import os

import pytest

from tests.runtime.conftest import Runtime
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import FileChanged
from workspaces.sandbox_files import FileStream

SIZE = 5_000_000  # bytes: more than what is on its way at once


async def opened(sandbox: Sandbox, runtime: Runtime, offset: int = 0, limit: int | None = None) -> FileStream:
    path = runtime.workdir / "big"
    path.write_bytes(b"x" * SIZE)
    os.utime(path, ns=(0, 0))  # else the clock of the file system may not have moved before it is written to again
    return await sandbox.read_stream("big", offset=offset, limit=limit)


async def to_the_end(stream: FileStream, parts: list[bytes]) -> None:
    async for part in stream.chunks:
        parts.append(part)


@pytest.mark.parametrize(("offset", "limit"), [(0, None), (100, 4_000_000), (-4_500_000, None)])
async def test_a_file_rewritten_in_place_during_a_download_never_arrives_whole(
    sandbox: Sandbox, runtime: Runtime, offset: int, limit: int | None
) -> None:
    stream = await opened(sandbox, runtime, offset, limit)
    with (runtime.workdir / "big").open("r+b") as file:
        file.write(b"y" * SIZE)
    parts: list[bytes] = []
    with pytest.raises(FileChanged):
        await to_the_end(stream, parts)
    # A client that has all the bytes it was told of takes them for the file, whatever comes behind them.
    assert sum(map(len, parts)) < stream.length


async def test_a_file_cut_to_nothing_and_filled_again_never_arrives_whole(sandbox: Sandbox, runtime: Runtime) -> None:
    stream = await opened(sandbox, runtime)
    (runtime.workdir / "big").write_bytes(b"y" * SIZE)
    with pytest.raises(FileChanged):
        await to_the_end(stream, [])


async def test_what_is_appended_or_a_new_mode_changes_no_byte_of_a_download(sandbox: Sandbox, runtime: Runtime) -> None:
    stream = await opened(sandbox, runtime)
    path = runtime.workdir / "big"
    with path.open("ab") as file:
        file.write(b"y" * SIZE)
    parts: list[bytes] = []
    await to_the_end(stream, parts)
    assert b"".join(parts) == b"x" * SIZE
    stream = await opened(sandbox, runtime)
    path.chmod(0o600)
    parts.clear()
    await to_the_end(stream, parts)
    assert b"".join(parts) == b"x" * SIZE
