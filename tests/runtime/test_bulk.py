"""Bulk frames: large files under a MAC that costs little, and everything as before where that is not to be had."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.conftest import Runtime, SocketChannel, request
from tests.runtime.test_hostile import Liar, Lie, lying, stranger  # noqa: F401
from workspaces import sandbox_files
from workspaces.runtime import gmac, protocol
from workspaces.runtime.connection import Connection
from workspaces.runtime.protocol import BULK, BULK_CHUNK, BadMac, Decoder, Encoder, ProtocolViolation
from workspaces.runtime.transfers import BULK_FROM
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import ChannelClosed, ProtocolError
from workspaces.sandbox_files import _Transfer
from workspaces.sandbox_link import tagger, takes_bulk

KEY, BULK_KEY = bytes(32), bytes(range(32))
LARGE = BULK_FROM + 3 * BULK_CHUNK + 17
Frame = tuple[int, int, bytes]
frames = st.lists(
    st.tuples(st.sampled_from([BULK, protocol.DATA, 200]), st.integers(0, 2**32 - 1), st.binary(max_size=300)),
    min_size=1,
    max_size=8,
)


def encode(encoder: Encoder, frame: Frame) -> bytes:
    kind, stream, payload = frame
    if kind == BULK:
        return b"".join(encoder.encode_bulk(stream, payload, tagger(BULK_KEY)))
    return encoder.encode(kind, stream, payload)


def pair() -> tuple[Encoder, Decoder]:
    encoder, decoder = Encoder(), Decoder()
    encoder.secure(KEY)
    decoder.secure(KEY, tag=tagger(BULK_KEY))
    return encoder, decoder


def decode_all(decoder: Decoder, wire: bytes, step: int = 1 << 20) -> list[Frame]:
    found = []
    for start in range(0, len(wire), step):
        decoder.feed(memoryview(wire)[start : start + step])
        while (frame := decoder.next()) is not None:
            found.append(frame)
    return found


# -- the frames


@given(frames, st.integers(1, 50))
def test_bulk_frames_come_out_in_order_among_the_others_however_the_bytes_are_cut(sent: list[Frame], step: int) -> None:
    encoder, decoder = pair()
    assert decode_all(decoder, b"".join(encode(encoder, frame) for frame in sent), step) == sent


@given(frames, st.data())
def test_one_flipped_bit_is_noticed_wherever_it_is(sent: list[Frame], data: st.DataObject) -> None:
    encoder, decoder = pair()
    wire = bytearray(b"".join(encode(encoder, frame) for frame in sent))
    position = data.draw(st.integers(0, len(wire) - 1))
    wire[position] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(ProtocolViolation):
        assert decode_all(decoder, bytes(wire)) != sent


@pytest.mark.parametrize("at", [4, 5, 8], ids=["kind", "first byte of the stream", "last byte of the stream"])
def test_a_bulk_frame_cannot_be_given_to_another_stream_or_be_another_kind(at: int) -> None:
    encoder, decoder = pair()
    wire = bytearray(encode(encoder, (BULK, 7, b"content")))
    wire[at] ^= 4
    with pytest.raises(BadMac):
        decode_all(decoder, bytes(wire))


@pytest.mark.parametrize("kinds", [(BULK, BULK, BULK), (BULK, 16, BULK), (16, BULK, 16)])
@pytest.mark.parametrize("disturb", ["replay", "reorder", "drop"])
def test_replayed_reordered_and_dropped_bulk_frames_are_noticed(disturb: str, kinds: tuple[int, int, int]) -> None:
    encoder, decoder = pair()
    first, second, third = (encode(encoder, (kind, 1, b"frame")) for kind in kinds)
    wire = {"replay": first + first, "reorder": second + first, "drop": first + third}[disturb]
    with pytest.raises(BadMac):
        decode_all(decoder, wire)


def test_a_bulk_frame_of_another_connection_is_noticed() -> None:
    encoder, decoder = pair()
    with pytest.raises(BadMac):
        decode_all(decoder, b"".join(encoder.encode_bulk(1, b"frame", tagger(bytes(32)))))


def test_bulk_frames_are_refused_by_who_did_not_ask_for_them() -> None:
    encoder, decoder = pair()
    wire = encode(encoder, (BULK, 1, b"frame"))
    decoder.secure(KEY)
    for each in (decoder, Decoder()):
        with pytest.raises(ProtocolViolation):
            decode_all(each, wire)


def test_a_bulk_frame_that_is_too_long_is_refused_by_its_header() -> None:
    encoder, decoder = pair()
    wire = encode(encoder, (BULK, 1, bytes(BULK_CHUNK + 1)))
    with pytest.raises(ProtocolViolation):
        decode_all(decoder, wire[:9])


def test_a_bulk_frame_that_comes_byte_by_byte_costs_few_objects() -> None:
    encoder, decoder = pair()
    content = os.urandom(5000)
    wire = encode(encoder, (BULK, 1, content))
    for at in range(len(wire) - 1):
        decoder.feed(wire[at : at + 1])
        assert decoder.next() is None
        assert len(decoder._parts) <= 257
    decoder.feed(wire[-1:])
    assert decoder.next() == (BULK, 1, content)


# -- the MAC


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a runtime that has just started."""
    monkeypatch.setattr(gmac, "_library", None)
    monkeypatch.setattr(gmac, "_looked", False)
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)


def test_it_is_the_gmac_of_the_standard() -> None:
    """A vector of NIST's validation suite (AES-256, no plaintext, 128 bits of additional data)."""
    key = bytes.fromhex("78dc4e0aaf52d935c3c01eea57428f00ca1fd475f5da86a49c8dd73d68c8e223")
    nonce, data = bytes.fromhex("d79cf22d504cc793c3fb6c8a"), bytes.fromhex("b96baa8c1c75a671bfb2d08d06be5f36")
    expected = bytes.fromhex("3e5d486aa2e30b22e040b85723a06e76")
    for tag in (gmac.Gmac(gmac._open(), key), tagger(key)):
        assert tag(nonce, data) == expected


@given(st.binary(min_size=32, max_size=32), st.lists(st.binary(max_size=5000), min_size=1, max_size=4))
def test_both_ends_make_the_same_of_the_same(key: bytes, datas: list[bytes]) -> None:
    inside, outside = gmac.Gmac(gmac._open(), key), tagger(key)
    for number, data in enumerate(datas):
        nonce = number.to_bytes(12, "big")
        assert inside(nonce, data) == outside(nonce, data)


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "LD_PRELOAD"])
def test_a_library_that_a_program_may_have_put_there_is_not_loaded(
    name: str, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "/workspace/lib")
    assert gmac.library() is None


def test_an_image_without_the_library_has_no_bulk_frames(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gmac, "_NAMES", ("libno-such-thing.so.9",))
    assert gmac.library() is None


def test_a_library_of_another_make_has_no_bulk_frames(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gmac, "_NAMES", ("libc.so.6",))
    assert gmac.library() is None


def test_where_the_processor_does_not_help_there_are_no_bulk_frames(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gmac, "faster", lambda tag: False)
    assert gmac.library() is None


def test_what_is_slower_is_not_faster() -> None:
    def slow(nonce: bytes, data: bytes) -> bytes:
        for _ in range(3):
            blake2b(data, key=KEY).digest()
        return b""

    assert not gmac.faster(slow)
    assert gmac.faster(lambda nonce, data: b"")


def test_a_library_that_refuses_gives_no_tag() -> None:
    tag = gmac.Gmac(gmac._open(), KEY)

    class Refusing:
        def __getattr__(self, name: str) -> Callable[..., int]:
            return lambda *arguments: 0

    real, tag._library = tag._library, Refusing()
    with pytest.raises(OSError, match="refuses"):
        tag(bytes(12), b"data")
    tag._library = real


@pytest.mark.parametrize("fault", [MemoryError(), OSError("libcrypto refuses")])
def test_a_runtime_without_room_for_the_tag_of_bulk_frames_goes_on_without_them(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bytes] = []

    def full(library: object, key: bytes) -> None:
        made.append(key)
        raise fault

    monkeypatch.setattr(gmac, "library", object)
    monkeypatch.setattr(gmac, "Gmac", full)
    connection = Connection.__new__(Connection)
    connection._bulk_key, connection._bulk_tag = BULK_KEY, None
    assert (connection.bulk(), connection.bulk()) == (False, False)
    assert made == [BULK_KEY]


# -- files


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kinds of the frames with content that the client's transfers get."""
    found: list[int] = []
    on_frame = _Transfer.on_frame

    def noting(self: _Transfer, kind: int, payload: bytes) -> None:
        if kind in (BULK, protocol.DATA):
            found.append(kind)
        on_frame(self, kind, payload)

    monkeypatch.setattr(_Transfer, "on_frame", noting)
    return found


def best() -> int:
    """The kind for large files where this runs: without AES in the processor nobody wants bulk frames."""
    return BULK if gmac.library() is not None and takes_bulk() else protocol.DATA


async def all_of(sandbox: Sandbox, offset: int = 0) -> bytes:
    stream = await sandbox.read_stream("big", offset=offset)
    return b"".join([part async for part in stream.chunks])


async def test_a_large_file_comes_in_bulk_frames_and_a_small_one_does_not(
    sandbox: Sandbox, runtime: Runtime, kinds: list[int]
) -> None:
    content = os.urandom(LARGE)
    (runtime.workdir / "big").write_bytes(content)
    assert await all_of(sandbox) == content
    assert set(kinds) == {best()}
    assert best() != BULK or len(kinds) < 2 * LARGE // BULK_CHUNK
    kinds.clear()
    assert await all_of(sandbox, LARGE - BULK_FROM) == content[LARGE - BULK_FROM :]
    assert set(kinds) == {best()}
    kinds.clear()
    assert await all_of(sandbox, LARGE - BULK_FROM + 1) == content[LARGE - BULK_FROM + 1 :]
    assert set(kinds) == {protocol.DATA}


async def test_a_large_directory_goes_on_in_bulk_frames(sandbox: Sandbox, runtime: Runtime, kinds: list[int]) -> None:
    for number in range(LARGE // 500_000 + 1):
        (runtime.workdir / str(number)).write_bytes(os.urandom(500_000))
    stream = await sandbox.pack("")
    received = b"".join([part async for part in stream.chunks])
    assert len(received) > LARGE
    assert all((runtime.workdir / str(number)).read_bytes()[:60_000] in received for number in range(3))
    assert kinds.count(protocol.DATA) >= BULK_FROM // protocol.CHUNK
    assert kinds[-1] == best()


@pytest.mark.parametrize("who", ["client", "runtime"])
async def test_either_end_may_do_without(
    who: str, tmp_path: Path, archive: Path, kinds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if who == "client":
        monkeypatch.setattr(sandbox_files, "takes_bulk", lambda: False)
    else:
        monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    runtime = Runtime(tmp_path, archive)
    try:
        content = os.urandom(LARGE)
        (runtime.workdir / "big").write_bytes(content)
        sandbox = runtime.sandbox()
        assert await all_of(sandbox) == content
        assert set(kinds) == {protocol.DATA}
        await sandbox.close()
    finally:
        runtime.stop()


async def test_a_bulk_frame_changed_on_the_way_is_an_error_and_not_another_file(runtime: Runtime) -> None:
    (runtime.workdir / "big").write_bytes(b"A" * LARGE)

    async def connect() -> SocketChannel:
        channel = await runtime.connect()
        read = channel.read

        async def flip(limit: int) -> bytes:
            return (await read(limit)).replace(b"A" * 100, b"A" * 99 + b"B", 1)

        channel.read = flip  # type: ignore[method-assign]
        return channel

    sandbox = runtime.sandbox(open_channel=connect)
    with pytest.raises((ProtocolError, ChannelClosed)):
        await all_of(sandbox)
    await sandbox.close()


async def test_a_bulk_frame_to_the_runtime_ends_the_connection_and_nothing_else(
    sandbox: Sandbox, runtime: Runtime
) -> None:
    link = await sandbox.connected()
    frame = b"".join(link._encoder.encode_bulk(1, b"data", tagger(KEY)))
    await link._channel.write(frame)
    assert await sandbox.stat("")
    assert link.closed is not None
    sock = stranger(runtime)
    sock.sendall(frame)
    assert b"proof" not in sock.recv(4096)
    sock.close()


# -- a runtime that lies


@pytest.mark.parametrize("content", [[b""], [bytes(BULK_CHUNK)] * 5], ids=["empty", "more than the credit"])
async def test_bulk_frames_that_break_the_rules_of_data_are_refused(content: list[bytes]) -> None:
    transfer = _Transfer()
    with pytest.raises(ProtocolError):  # before the file was opened, nothing may come
        transfer.on_frame(BULK, b"early")
    transfer.on_frame(protocol.EVENT, protocol.dumps({"start": 0}))
    for data in content[:-1]:
        transfer.on_frame(BULK, data)
    with pytest.raises(ProtocolError):
        transfer.on_frame(BULK, content[-1])
    assert transfer.waiting == sum(map(len, content[:-1]))


async def test_bulk_frames_are_no_output_of_a_program(lying: Callable[[Lie], Awaitable[Sandbox]]) -> None:  # noqa: F811
    told = 0

    async def lie(liar: Liar) -> None:
        nonlocal told
        told += 1
        if told > 2:
            liar.writer.close()
            return
        await liar.prove()
        _, stream, _ = await liar.receive()
        liar.send(protocol.EVENT, stream, protocol.dumps({"pid": 7, "stdin": 0, "stdout": 0, "stderr": 0}))
        liar.writer.write(b"".join(liar.encoder.encode_bulk(stream, b"text", liar.bulk_tag)))

    handle = await (await lying(lie)).start_exec(request("true"))
    assert (await handle.outcome()).ended_by == "lost"
    assert [chunk async for chunk in handle.output()] == []
