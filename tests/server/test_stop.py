"""What a signal does to a server that works."""

from __future__ import annotations

import concurrent.futures
import signal
import socket

import pytest
import requests
import websocket

from tests.eventually import eventually


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_refuses_new_connections_and_answers_what_is_under_way(serve, number):
    server = serve()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        under_way = pool.submit(requests.get, f"{server.url}/slow", timeout=20)
        server.wait_for("slow-started")
        server.process.send_signal(number)
        eventually(lambda: refuses(server.port))
        server.allow("slow-release")
        assert under_way.result().text == "late but whole"
    assert server.process.wait(10) == 0
    assert "Traceback" not in server.logged().split("the first try fails")[-1]


def test_a_request_on_a_kept_connection_is_told_to_come_back(serve):
    server = serve(drain_s=20)
    with requests.Session() as client:
        assert client.get(server.url, timeout=10).text == "hello"
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("drain-began")
        answer = client.get(server.url, timeout=10)
    server.allow("drained")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert server.process.wait(10) == 0


def test_running_work_gets_its_time_and_services_outlive_it(serve):
    server = serve(drain_s=20)
    server.wait_for("service-started")
    server.process.send_signal(signal.SIGTERM)
    assert float(server.wait_for("drain-began")) == 20
    assert server.told("service-stopped") is None
    server.allow("drained")
    assert server.wait_for("drain-ended") == "complete"
    server.wait_for("service-stopped")
    assert server.process.wait(10) == 0


def test_work_that_outlasts_its_time_is_interrupted(serve):
    server = serve(drain_s=0.1)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0
    assert server.told("drain-ended") == "interrupted"


def test_a_second_signal_does_not_wait(serve):
    server = serve(drain_s=600)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        under_way = pool.submit(requests.get, f"{server.url}/slow", timeout=20)
        server.wait_for("slow-started")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("drain-began")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
        with pytest.raises(requests.ConnectionError):
            under_way.result()
    assert server.told("drain-ended") == "interrupted"


def test_open_sockets_are_closed_with_the_restart_code(serve):
    server = serve()
    client = websocket.create_connection(f"ws://127.0.0.1:{server.port}/echo", timeout=10)
    client.send("there?")
    assert client.recv() == "there?"
    server.process.send_signal(signal.SIGTERM)
    opcode, data = client.recv_data()
    client.shutdown()
    assert (opcode, int.from_bytes(data[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 4012)
    assert server.process.wait(10) == 0
    assert server.told("socket-closed") is not None


def test_a_client_that_reads_nothing_does_not_hold_the_stop_up(serve):
    server = serve()
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(b"GET /flood?bytes=300000000 HTTP/1.1\r\nHost: x\r\n\r\n")
    server.settled("flood-sent")
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: refuses(server.port))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0
    client.close()


def test_a_service_that_fails_is_started_again(serve):
    server = serve()
    server.wait_for("failing-recovered")
    assert "the first try fails" in server.logged()


def test_an_address_in_use_is_named():
    from primer_site.server import AddressInUse, bind

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=rf"127\.0\.0\.1:{port}"):
            bind("127.0.0.1", port)
