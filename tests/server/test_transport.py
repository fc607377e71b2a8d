"""Back-pressure, bodies and limits of the server, on a real process that runs a small application."""

from __future__ import annotations

import hashlib
import os
import socket

import pytest
import requests
import websocket

from tests.eventually import eventually
from tests.server.conftest import BareServer

SMALL_BUFFER = 64 * 1024
# What lies between an application and a client that does not read: the server's buffer and two of the kernel.
IN_TRANSIT = 16 * 1024 * 1024


def slow_reader(server: BareServer, request: bytes) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    client.connect(("127.0.0.1", server.port))
    client.sendall(request)
    return client


def read_to_end(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def test_a_download_that_nobody_reads_stops_the_application(serve):
    server = serve()
    with slow_reader(server, b"GET /flood?bytes=300000000 HTTP/1.1\r\nHost: x\r\n\r\n"):
        assert server.settled("flood-sent") < IN_TRANSIT
        assert requests.get(server.url, timeout=10).text == "hello"


def test_a_download_goes_on_when_the_client_reads_again(serve):
    server = serve()
    with slow_reader(server, b"GET /flood?bytes=50000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as client:
        assert server.settled("flood-sent") < 50_000_000
        assert len(read_to_end(client)) > 50_000_000
    assert int(server.wait_for("flood-sent")) >= 50_000_000


def test_a_download_blocked_for_too_long_ends_its_connection(serve):
    server = serve(http_blocked_s=0.2)
    with slow_reader(server, b"GET /flood?bytes=300000000 HTTP/1.1\r\nHost: x\r\n\r\n") as client:
        # Sends to a connection that has ended return at once, so the application comes to its end.
        eventually(lambda: int(server.told("flood-sent") or 0) >= 300_000_000, 20)
        with pytest.raises(ConnectionResetError):
            read_to_end(client)


def test_a_socket_that_nobody_reads_stops_the_application(serve):
    server = serve()
    options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)]
    client = websocket.create_connection(f"ws://127.0.0.1:{server.port}/flood", sockopt=options, timeout=10)
    try:
        assert server.settled("socket-sent") < IN_TRANSIT
    finally:
        client.shutdown()


def test_a_socket_blocked_for_too_long_is_closed_as_too_slow(serve):
    server = serve(socket_blocked_s=0.2)
    options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)]
    client = websocket.create_connection(f"ws://127.0.0.1:{server.port}/flood", sockopt=options, timeout=10)
    assert server.wait_for("closing", 20) == "4408"  # from here on the client has a moment to read
    opcode, data = client.recv_data()
    while opcode == websocket.ABNF.OPCODE_BINARY:
        opcode, data = client.recv_data()
    assert (opcode, int.from_bytes(data[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 4408)
    client.shutdown()


def test_a_message_longer_than_what_clients_may_send_arrives_whole_and_the_next_one_too(serve):
    server = serve()
    client = websocket.create_connection(f"ws://127.0.0.1:{server.port}/long", timeout=10)
    assert client.recv() == "y" * 1_000_000
    client.send("and on")
    assert client.recv() == "and on"
    client.close()


def test_a_client_that_sends_too_long_a_message_is_closed(serve):
    server = serve()
    client = websocket.create_connection(f"ws://127.0.0.1:{server.port}/long", timeout=10)
    try:
        client.recv()
        client.send("z" * 70_000)
        with pytest.raises((websocket.WebSocketConnectionClosedException, ConnectionError)):
            client.recv()
    finally:
        client.shutdown()


def test_a_client_that_floods_a_deaf_socket_is_closed(serve):
    server = serve()
    client = websocket.create_connection(f"ws://127.0.0.1:{server.port}/deaf", timeout=10)
    for _ in range(200):
        client.send("x" * 1000)
    opcode, data = client.recv_data()
    assert (opcode, int.from_bytes(data[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 4429)
    client.shutdown()
    server.allow("deaf-listens")


def test_a_body_reaches_the_application_in_small_pieces_and_whole(serve):
    body = os.urandom(3_000_000)
    answer = requests.post(f"{serve().url}/digest", data=body, timeout=10).json()
    assert answer == {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "largest": 65536}


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 131072])
def test_bodies_around_the_piece_size_arrive_whole(serve, size):
    answer = requests.post(f"{serve().url}/digest", data=b"y" * size, timeout=10).json()
    assert answer["size"] == size


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_above_the_limit_is_answered_with_413_and_never_reaches_the_application(serve, chunked):
    body = b"z" * 5_000_000
    answer = requests.post(f"{serve().url}/digest", data=iter([body]) if chunked else body, timeout=10)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_form_is_not_read_into_memory_by_the_server_itself(serve):
    answer = requests.post(f"{serve().url}/digest", data={"field": "v" * 1_000_000}, timeout=10).json()
    assert answer["size"] == 1_000_006


@pytest.mark.parametrize(
    "request_line", [b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nBad Name: x\r\n\r\n"]
)
def test_a_request_that_is_not_http_is_400(serve, request_line):
    with slow_reader(serve(), request_line) as client:
        assert b" 400 " in read_to_end(client).split(b"\r\n")[0]


def test_a_client_that_leaves_in_the_middle_of_its_body_disturbs_nobody(serve):
    server = serve()
    slow_reader(server, b"POST /digest HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc").close()
    assert requests.get(server.url, timeout=10).text == "hello"
    assert "Traceback" not in server.logged().replace("the first try fails", "").split("RuntimeError")[-1]


def test_an_answer_that_breaks_off_for_a_reason_of_ours_is_cut_and_costs_one_line_of_the_log(serve):
    server = serve()
    server.wait_for("failing-recovered")
    before = server.logged()
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        requests.get(f"{server.url}/broken?ours", timeout=10)
    eventually(lambda: server.logged() != before)
    [line] = server.logged().removeprefix(before).splitlines()
    assert "an answer broke off" in line
    assert "It was changed." in line
    assert "/broken" in line
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        requests.get(f"{server.url}/broken?fault", timeout=10)
    eventually(lambda: "RuntimeError: a fault" in server.logged())
    assert server.logged().count("Traceback") == before.count("Traceback") + 1
