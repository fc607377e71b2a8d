"""`primer up` as people and scripts meet it."""

from __future__ import annotations

import signal
import socket

import pytest
import requests
import websocket

from tests.eventually import eventually
from tests.server.primer import NO_ENGINE, Home

pytestmark = pytest.mark.e2e


def test_it_says_where_it_serves_and_what_to_type_next(own_server):
    own_server.start(**NO_ENGINE)
    assert own_server.output[-2:] == [f"Console  {own_server.url}/", "Try      primectl run -c 'print(6*7)'"]
    assert requests.get(f"{own_server.url}/healthz", timeout=10).json() == {"ok": True}


def test_a_second_one_names_the_first_and_succeeds(server):
    home = Home(server.directory)
    done = home.primer("up", PRIMER_HOME=str(server.home))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"ok    server    runs already as process {server.pid}",
        f"Console  {server.url}/",
    ]


def test_an_address_in_use_is_one_sentence_and_the_next_step(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = Home(tmp_path).primer("up", "--port", str(port), "--no-samples", **NO_ENGINE)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: Another program listens on 127.0.0.1:{port}.",
        "hint: Choose another port with --port, or 0 for a free one.",
    ]


def test_a_killed_server_starts_again_on_its_data(own_server):
    own_server.start(**NO_ENGINE)
    before = own_server.request("GET", "/v1/me").json()
    own_server.kill9()
    own_server.restart(**NO_ENGINE)
    assert own_server.request("GET", "/v1/me").json() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_exit_code_0(own_server, number):
    own_server.start(**NO_ENGINE)
    own_server.process.send_signal(number)
    assert own_server.process.wait(20) == 0
    assert "Traceback" not in own_server.log()


def test_a_view_that_waits_does_not_keep_the_process_after_its_time(own_server):
    """A half-sent request holds its connection; the stop must not wait for it for ever."""
    own_server.start(**NO_ENGINE)
    with socket.create_connection(("127.0.0.1", own_server.port)) as client:
        client.sendall(b"POST /v1/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert own_server.stop() == 0


def test_a_server_that_is_ending_is_not_taken_for_one_that_serves(own_server):
    """`primer up` right after a stop said "runs already", and then nothing served."""
    own_server.start(**NO_ENGINE)
    with socket.create_connection(("127.0.0.1", own_server.port)) as client:
        client.sendall(b"POST /v1/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        ending = own_server.process
        ending.send_signal(signal.SIGTERM)  # the request holds it up
        own_server.start(**NO_ENGINE)
        assert ending.wait(20) == 0
    assert requests.get(f"{own_server.url}/healthz", timeout=10).json() == {"ok": True}


def test_the_first_login_removes_the_file_with_the_first_password(own_server):
    own_server.start(**NO_ENGINE, PRIMER_INIT_ADMIN_PASSWORD="")
    kept = own_server.home / "initial-password"
    body = {"username": "admin", "password": kept.read_text().strip()}
    assert any(line.endswith("(shown once)") for line in own_server.output)
    assert own_server.request("POST", "/v1/auth/login", token="", json=body).status_code == 200
    assert not kept.exists()


def test_the_server_says_until_then_where_the_first_password_is(own_server):
    own_server.start(**NO_ENGINE, PRIMER_INIT_ADMIN_PASSWORD="")
    own_server.restart(**NO_ENGINE, PRIMER_INIT_ADMIN_PASSWORD="")
    assert f"first password in {own_server.home / 'initial-password'}" in own_server.output[-2]


def test_nothing_secret_reaches_the_log(server):
    server.request("POST", "/v1/auth/login", token="", json={"username": "admin", "password": server.password})
    server.request("GET", "/v1/me")
    log = server.log()
    assert "/v1/me" in log
    secrets = [
        server.token,
        server.password,
        *((server.home / n).read_text().strip() for n in ("secret-key", "encryption-keys")),
    ]
    assert [secret for secret in secrets if secret in log] == []


def test_an_unknown_socket_is_accepted_and_closed_as_not_found(server):
    client = websocket.create_connection(f"ws://127.0.0.1:{server.port}/ws/v1/nothing/", timeout=10)
    opcode, data = client.recv_data()
    client.shutdown()
    assert (opcode, int.from_bytes(data[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 4404)


def test_a_foreign_host_header_is_refused_without_a_traceback_in_the_log(server):
    answer = server.request("GET", "/healthz", headers={"Host": "evil.example"})
    assert answer.status_code == 400
    assert "evil.example" not in server.log()


@pytest.mark.docker
def test_a_stop_tells_how_many_workspaces_keep_running(own_server, docker_engine, runtime_image):
    own_server.start()
    connection = {"kind": "socket", "socket_path": docker_engine}
    config = {"kind": "container", "runtime": "docker", "connection": connection}
    template = {"id": "plain", "provider_id": "engine", "backend": {"kind": "container", "image": runtime_image}}
    for path, body in [
        ("workspace_providers", {"id": "engine", "provider": "container", "config": config}),
        ("workspace_templates", template),
    ]:
        assert own_server.request("POST", f"/v1/{path}", json=body).status_code == 201
    workspace = own_server.request("POST", "/v1/workspaces", json={"template_id": "plain"}).json()["id"]
    eventually(lambda: own_server.request("GET", f"/v1/workspaces/{workspace}").json()["phase"] == "running", 60)
    own_server.stop()
    line = "Stopped. 1 workspace keeps running on the engine; primer up finds them again."
    eventually(lambda: own_server.output[-1] == line)
