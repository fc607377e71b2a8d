"""What the client makes of the frames of a download, however they are cut."""

from __future__ import annotations

import asyncio

import pytest

from primer_site.errors import Timeout
from workspaces import sandbox_files
from workspaces.runtime import protocol
from workspaces.sandbox_files import _PART, _PIECES, _Transfer


def receiving() -> _Transfer:
    transfer = _Transfer()
    transfer.on_frame(protocol.EVENT, protocol.dumps({"start": 0}))
    return transfer


def data(transfer: _Transfer, piece: bytes) -> None:
    transfer.on_frame(protocol.DATA, protocol.pack_data(protocol.FILE, transfer.received, piece))


async def test_a_flood_of_frames_of_one_byte_costs_few_objects_and_loses_nothing() -> None:
    transfer = receiving()
    sent = bytes(number % 251 for number in range(5 * _PIECES))
    for byte in sent:
        data(transfer, bytes([byte]))
    assert len(transfer.data) <= _PIECES + 1
    assert transfer.waiting == len(sent)
    assert transfer.take(len(sent)) == sent
    assert (transfer.waiting, len(transfer.data)) == (0, 0)


async def test_a_slow_file_is_waited_for_as_long_as_something_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_files, "IDLE_S", 0.05)
    transfer = receiving()
    transfer._wake.clear()

    async def trickle() -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.4
        while loop.time() < end:
            data(transfer, b"x")
            await asyncio.sleep(0)
        data(transfer, bytes(_PART))

    source = asyncio.create_task(trickle())
    await transfer.step()
    assert transfer.waiting >= _PART
    await source


async def test_a_file_of_which_nothing_more_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_files, "IDLE_S", 0.05)
    transfer = receiving()
    data(transfer, b"x")
    with pytest.raises(Timeout):
        await transfer.step()
