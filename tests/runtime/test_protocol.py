"""Frames: what the decoder accepts, refuses, and never holds."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspaces.runtime import protocol
from workspaces.runtime.protocol import BadMac, Decoder, Encoder, ProtocolViolation

KEY = bytes(32)
frames = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=300)), min_size=1, max_size=8
)


def pair(*, secure: bool = True) -> tuple[Encoder, Decoder]:
    encoder, decoder = Encoder(), Decoder()
    if secure:
        encoder.secure(KEY)
        decoder.secure(KEY)
    return encoder, decoder


def decode_all(decoder: Decoder, data: bytes) -> list[tuple[int, int, bytes]]:
    decoder.feed(data)
    found = []
    while (frame := decoder.next()) is not None:
        found.append(frame)
    return found


@given(frames, st.integers(1, 50), st.booleans())
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(
    sent: list[tuple[int, int, bytes]], step: int, secure: bool
) -> None:
    encoder, decoder = pair(secure=secure)
    wire = b"".join(encoder.encode(*frame) for frame in sent)
    received = []
    for start in range(0, len(wire), step):
        received += decode_all(decoder, wire[start : start + step])
    assert received == sent


@given(st.binary(max_size=2000))
def test_garbage_gives_a_violation_or_waits_and_never_anything_else(data: bytes) -> None:
    _, decoder = pair()
    with suppress(ProtocolViolation):
        assert decode_all(decoder, data) == []


@given(frames, st.data())
def test_one_flipped_bit_is_noticed(sent: list[tuple[int, int, bytes]], data: st.DataObject) -> None:
    encoder, decoder = pair()
    wire = bytearray(b"".join(encoder.encode(*frame) for frame in sent))
    position = data.draw(st.integers(0, len(wire) - 1))
    wire[position] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(ProtocolViolation):
        assert decode_all(decoder, bytes(wire)) != sent


def test_a_frame_of_2_to_the_32_minus_1_bytes_is_refused_by_its_header() -> None:
    for secure in (False, True):
        _, decoder = pair(secure=secure)
        with pytest.raises(ProtocolViolation):
            decode_all(decoder, b"\xff\xff\xff\xff\x10\x00\x00\x00\x01")


def test_a_frame_shorter_than_its_own_head_is_refused() -> None:
    _, decoder = pair()
    with pytest.raises(ProtocolViolation):
        decode_all(decoder, b"\x00\x00\x00\x01\x10\x00\x00\x00\x01")


def test_before_the_proof_frames_are_small() -> None:
    encoder, decoder = pair(secure=False)
    with pytest.raises(ProtocolViolation):
        decode_all(decoder, encoder.encode(1, 0, b"x" * (protocol.MAX_GREETING + 1))[:20])


@pytest.mark.parametrize("disturb", ["replay", "reorder", "drop"])
def test_replayed_reordered_and_dropped_frames_are_noticed(disturb: str) -> None:
    encoder, decoder = pair()
    first, second, third = (encoder.encode(16, n, b"frame") for n in range(3))
    wire = {"replay": first + first, "reorder": second + first, "drop": first + third}[disturb]
    with pytest.raises(BadMac):
        decode_all(decoder, wire)


def test_each_direction_has_a_key_of_its_own() -> None:
    script = protocol.transcript(b"greeting", b"n" * 16)
    keys = {protocol.derive(KEY, script, purpose) for purpose in (b"client", b"server", b"c2s", b"s2c")}
    assert len(keys) == 4


def test_the_transcript_separates_greeting_and_nonce() -> None:
    assert protocol.transcript(b"ab", b"c") != protocol.transcript(b"a", b"bc")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_control_payloads_survive_the_round_trip(body: dict[str, object]) -> None:
    assert protocol.loads(protocol.dumps(body)) == body


def test_bytes_that_are_not_utf8_travel_as_lone_surrogates() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert protocol.loads(protocol.dumps({"path": name}))["path"] == name


@pytest.mark.parametrize("payload", [b"", b"[]", b'"x"', b"{", b"{} {}", b"\xff", b"[" * 100_000, b'{"a":1e', b"nul"])
def test_what_is_not_one_json_object_is_a_violation(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        protocol.loads(payload)


def test_data_and_credit_are_checked_for_their_size() -> None:
    assert protocol.unpack_data(protocol.pack_data(1, 7, b"abc")) == (1, 7, b"abc")
    assert protocol.unpack_credit(protocol.pack_credit(1, 7, 9)) == (1, 7, 9)
    for payload in (b"", b"\x01" * 8):
        with pytest.raises(ProtocolViolation):
            protocol.unpack_data(payload)
        with pytest.raises(ProtocolViolation):
            protocol.unpack_credit(payload)
