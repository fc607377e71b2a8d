"""Programs over real HTTP in a real container: streams that break, output by hash, secrets, caps, deadlines, kill."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.engine import DockerView
from tests.eventually import eventually
from tests.factories import CONTAINER_BACKEND, CONTAINER_CONFIG
from tests.live import LiveServer

pytestmark = [pytest.mark.docker, pytest.mark.e2e]
SECRET = "sentinel-5bd1-of-the-environment"
MIB = 1 << 20
# Bytes that no text decoder likes, the same here and there; the second stream is another one.
PRINTS = """
import random, sys
for pipe, seed, size in ((sys.stdout, 1, {out}), (sys.stderr, 2, {err})):
    pipe.buffer.write(random.Random(seed).randbytes(size))
"""
HELD = """
import os, random, sys, time
data = random.Random(1).randbytes({size})
for start in range(0, len(data), 65536):
    sys.stdout.buffer.write(data[start:start + 65536])
    sys.stdout.flush()
    while start >= {hold} and not os.path.exists('go'):
        time.sleep(0.01)
"""


def digest(seed: int, size: int) -> str:
    return hashlib.sha256(random.Random(seed).randbytes(size)).hexdigest()


class Box:
    """A workspace on a real server; `path` is below it."""

    def __init__(self, server: LiveServer, **body: Any) -> None:
        self.server = server
        self.id: str = self.call("POST", "/v1/workspaces", json={"template_id": "http-box", **body}).json()["id"]
        eventually(lambda: self.get()["phase"] == "running", within=60)

    def call(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        answer = self.server.request(method, path, **kwargs)
        assert answer.status_code < 500, answer.text
        return answer

    def at(self, path: str = "") -> str:
        return f"/v1/workspaces/{self.id}{path}"

    def get(self, path: str = "", **params: Any) -> Any:
        return self.call("GET", self.at(path), params=params).json()

    def run(self, *argv: str, **body: Any) -> dict[str, Any]:
        answer = self.call("POST", self.at("/exec"), json={"argv": list(argv), **body})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def begin(self, *argv: str, **body: Any) -> str:
        answer = self.call("POST", self.at("/exec"), json={"argv": list(argv), "background": True, **body})
        assert (answer.status_code, answer.json()["state"]) == (202, "running")
        return str(answer.json()["id"])

    def pages(self, exec_id: str, name: str, offset: int = 0, limit: int = 99_991) -> Iterator[bytes]:
        """What is kept from an offset on, until the run has ended and there is no more."""
        while True:
            page = self.get(f"/exec/{exec_id}/output", stream=name, offset=offset, limit=limit)
            assert page["gap"] is None
            yield base64.b64decode(page["data"]) if page["encoding"] == "base64" else page["data"].encode()
            if page["ended"] and not page["data"]:
                return
            offset = page["next_offset"]

    def hash(self, exec_id: str, name: str) -> str:
        return hashlib.sha256(b"".join(self.pages(exec_id, name))).hexdigest()

    def delete(self) -> None:
        assert self.call("DELETE", self.at()).status_code in (202, 204)
        eventually(lambda: self.call("GET", self.at()).status_code == 404, within=60)


@pytest.fixture(scope="module")
def templates(server: LiveServer, runtime_image: str) -> None:
    backend = {**CONTAINER_BACKEND, "image": runtime_image}
    provider = {"id": "http-docker", "provider": "container", "config": CONTAINER_CONFIG}
    template = {"id": "http-box", "provider_id": "http-docker", "backend": backend}
    for path, body in (("workspace_providers", provider), ("workspace_templates", template)):
        answer = server.request("POST", f"/v1/{path}", json=body)
        assert answer.status_code == 201, answer.text


@pytest.fixture(scope="module")
def box(server: LiveServer, templates: None) -> Iterator[Box]:
    made = Box(server, env={"KEY": {"secret": SECRET}, "PLAIN": "shown"})
    yield made
    made.delete()


def test_output_is_byte_exact_after_the_end_and_after_the_workspace_is_deleted(
    server: LiveServer, templates: None
) -> None:
    box = Box(server)
    sizes = {"stdout": 3 * MIB + 7, "stderr": MIB + 1}
    expected = {"stdout": digest(1, sizes["stdout"]), "stderr": digest(2, sizes["stderr"])}
    code = PRINTS.format(out=sizes["stdout"], err=sizes["stderr"])
    done = box.run("python3", "-c", code, max_output_bytes=4 * MIB)
    assert {name: done[f"{name}_bytes"] for name in sizes} == sizes
    shown = {name: hashlib.sha256(base64.b64decode(done[name])).hexdigest() for name in sizes}
    assert shown == expected
    assert {name: box.hash(done["id"], name) for name in sizes} == expected
    box.delete()
    assert {name: box.hash(done["id"], name) for name in sizes} == expected
    assert box.get(f"/exec/{done['id']}")["exit_code"] == 0
    server.restart()
    assert {name: box.hash(done["id"], name) for name in sizes} == expected


def streamed(box: Box, *argv: str, **body: Any) -> requests.Response:
    headers = {"Accept": "application/x-ndjson"}
    answer = box.call("POST", box.at("/exec"), json={"argv": list(argv), **body}, headers=headers, stream=True)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/x-ndjson")
    return answer


def test_a_stream_that_breaks_goes_on_at_output_without_a_byte_lost_or_twice(box: Box) -> None:
    size, hold = 3 * MIB, MIB
    box.run("rm", "-f", "go")
    answer = streamed(box, "python3", "-c", HELD.format(size=size, hold=hold), max_output_bytes=4 * MIB)
    lines = (json.loads(line) for line in answer.iter_lines(chunk_size=4096))
    exec_id, got = next(lines)["id"], b""
    for line in lines:
        assert (line["stream"], line["offset"]) == ("stdout", len(got))
        got += base64.b64decode(line["data"]) if line["encoding"] == "base64" else line["data"].encode()
        if len(got) >= hold // 2:
            break
    answer.close()  # the socket is gone in the middle of the answer
    assert box.get(f"/exec/{exec_id}")["state"] == "running"
    box.run("touch", "go")
    rest = b"".join(box.pages(exec_id, "stdout", offset=len(got)))
    assert hashlib.sha256(got + rest).hexdigest() == digest(1, size)
    ended = box.get(f"/exec/{exec_id}")
    assert (ended["ended_by"], ended["exit_code"], ended["stdout_bytes"]) == ("exit", 0, size)


def test_a_line_arrives_while_the_program_still_runs(box: Box) -> None:
    answer = streamed(box, "sh", "-c", "echo first; while [ ! -e second ]; do sleep 0.05; done; echo last")
    lines = (json.loads(line) for line in answer.iter_lines(chunk_size=1))
    assert set(next(lines)) == {"id"}
    assert next(lines) == {"stream": "stdout", "offset": 0, "data": "first\n", "encoding": "utf-8"}
    box.run("touch", "second")
    assert next(lines)["data"] == "last\n"
    assert next(lines)["result"]["exit_code"] == 0
    assert list(lines) == []


def test_a_background_program_is_listed_looked_up_and_killed_with_its_children(box: Box) -> None:
    exec_id = box.begin("sh", "-c", "trap '' TERM; sleep 600 & echo up; wait", timeout_s=600)
    eventually(lambda: box.get(f"/exec/{exec_id}/output")["data"] == "up\n")
    listed = box.get("/exec", state="running")
    assert [one["id"] for one in listed["items"]] == [exec_id]
    assert box.call("DELETE", box.at(f"/exec/{exec_id}")).status_code in (202, 204)
    ended = eventually(lambda: (state := box.get(f"/exec/{exec_id}"))["ended_by"] and state, within=20)
    assert (ended["ended_by"], ended["evidence"]["cancelled_by"]) == ("cancelled", "admin")
    assert "sleep 600" not in box.run("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")["stdout"]
    assert box.get(f"/exec/{exec_id}/output")["data"] == "up\n"


def test_secrets_of_the_environment_reach_the_program_and_neither_the_container_nor_the_api(
    box: Box, docker_view: DockerView, server: LiveServer
) -> None:
    done = box.run("sh", "-c", "echo $KEY $PLAIN $MINE | tr a-z n-za-m", env={"MINE": "of-this-run"})
    assert done["stdout"] == "fragvary-5oq1-bs-gur-raivebazrag fubja bs-guvf-eha\n"
    assert SECRET not in json.dumps([box.get(), box.get(f"/exec/{done['id']}"), box.get("/exec")])
    assert "of-this-run" not in json.dumps([box.get(f"/exec/{done['id']}"), box.get("/exec")])
    assert SECRET not in json.dumps(docker_view.client.inspect_container(box.id))
    stored = b"".join(path.read_bytes() for path in server.home.iterdir() if path.is_file())
    assert box.id.encode() in stored  # the database is among them
    assert SECRET.encode() not in stored
    assert SECRET not in server.log()


def test_stdin_cwd_and_a_shell_line(box: Box) -> None:
    raw = random.Random(3).randbytes(MIB)
    done = box.run("sha256sum", stdin_base64=base64.b64encode(raw).decode())
    assert done["stdout"].split()[0] == hashlib.sha256(raw).hexdigest()
    box.run("mkdir", "-p", "inner")
    answer = box.call("POST", box.at("/exec"), json={"command": "pwd; cat | wc -c", "cwd": "inner", "stdin": "four"})
    assert answer.json()["stdout"].split() == ["/workspace/inner", "4"]
    assert box.run("pwd", cwd="/workspace/inner")["stdout"] == "/workspace/inner\n"
    refused = box.call("POST", box.at("/exec"), json={"argv": ["pwd"], "cwd": "nowhere"})
    assert (refused.status_code, refused.json()["code"]) == (422, "cannot_start")


def test_output_above_the_kill_limit_ends_the_program_and_what_is_kept_has_a_gap(box: Box) -> None:
    done = box.run("sh", "-c", "yes", max_output_bytes=4000, output_kill_bytes=2 * MIB, timeout_s=60)
    assert (done["ended_by"], done["truncated"]) == ("output_cap", True)
    assert done["stdout_bytes"] > 2 * MIB
    assert (len(done["stdout"]), done["stdout_gap"][0]) == (4000, 3000)
    assert done["evidence"]["limit"] == 2 * MIB
    page = box.get(f"/exec/{done['id']}/output", offset=3000)
    assert (page["gap"], page["offset"]) == (done["stdout_gap"], done["stdout_gap"][1])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_output_bytes": 64 * MIB + 1}, "max_output_bytes"),
        ({"output_kill_bytes": 256 * MIB + 1}, "output_kill_bytes"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"stdin": "a", "stdin_base64": "YQ=="}, "stdin"),
    ],
)
def test_caps_above_the_largest_are_refused_by_name(box: Box, body: dict[str, Any], field: str) -> None:
    answer = box.call("POST", box.at("/exec"), json={"argv": ["true"], **body})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


def test_a_timeout_ends_the_tree_and_keeps_what_was_printed(box: Box) -> None:
    done = box.run("sh", "-c", "echo before; setsid sleep 601 & sleep 602", timeout_s=1)
    assert (done["ended_by"], done["stdout"], done["survivors"]) == ("timeout", "before\n", [])
    assert done["evidence"]["limit"] == 1
    assert "sleep 60" not in box.run("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")["stdout"]
