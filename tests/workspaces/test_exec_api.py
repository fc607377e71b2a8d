"""The grammar of the routes of runs and files: keys, ETags, dry runs, parameters; and answers that are large."""

from __future__ import annotations

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from hypothesis import given
from hypothesis import strategies as st

from accounts.models import IdempotencyKey
from primer_site import loop
from tests.factories import Api, make_workspace
from tests.workspaces.test_exec import lines_of, python, run, stream
from workspaces import exec_keys, exec_rows, exec_shapes, execs
from workspaces.exec_shapes import result_body
from workspaces.execs import ExecFinished
from workspaces.execution import ExecOutcome, ExecRequest
from workspaces.models import Exec
from workspaces.output import Keeper, Kept, as_text, is_costly

# method, route below the workspace, body, query
WRITES: list[tuple[str, str, Any, dict[str, str]]] = [
    ("POST", "exec", {"command": "touch made"}, {}),
    ("DELETE", "exec/{exec}", None, {}),
    ("PUT", "files", {"content": "new"}, {"path": "kept"}),
    ("PUT", "files", b"new", {"path": "kept"}),
    ("DELETE", "files", None, {"path": "kept"}),
    ("POST", "files/dir", {"path": "made"}, {}),
    ("POST", "files/move", {"source": "kept", "target": "made"}, {}),
]
READS: list[tuple[str, str, Any, dict[str, str]]] = [
    ("GET", "exec/{exec}", None, {}),
    ("GET", "exec/{exec}/output", None, {}),
    ("GET", "files", None, {}),
    ("GET", "files/read", None, {"path": "kept"}),
    ("GET", "files/download", None, {"path": "kept"}),
]


def send(person: Api, workspace: str, route: Any, exec_id: str, **query: Any) -> Any:
    method, where, body, own = route
    return person.call(method, f"workspaces/{workspace}/{where.format(exec=exec_id)}", body, **own, **query)


@pytest.fixture
def sleeper(running: str, alice: Api) -> str:
    """The id of a running program, beside the file `kept`."""
    assert alice.put(f"workspaces/{running}/files", {"content": "old"}, path="kept").status_code == 204
    body = {"argv": ["sleep", "600"], "background": True}
    return str(alice.post(f"workspaces/{running}/exec", body).json()["id"])


@pytest.mark.parametrize("route", WRITES, ids=lambda route: f"{route[0]} {route[1]}")
def test_a_dry_run_changes_nothing(route: Any, running: str, sleeper: str, alice: Api) -> None:
    answer = send(alice, running, route, sleeper, dry_run="true")
    assert (answer.status_code, answer.content) == (204, b"")
    assert send(alice, running, route, sleeper, dry_run="perhaps").json()["errors"][0]["field"] == "dry_run"
    assert alice.get(f"workspaces/{running}/exec/{sleeper}").json()["state"] == "running"
    names = [item["path"] for item in alice.get(f"workspaces/{running}/files").json()["items"]]
    assert (names, Exec.objects.count()) == (["kept"], 1)
    assert alice.get(f"workspaces/{running}/files/read", path="kept").json()["content"] == "old"
    assert send(alice, running, route, sleeper).status_code < 300


def test_a_dry_run_checks_the_workspace_and_uses_no_key_up(template: Any, owner: Any, alice: Api) -> None:
    row = make_workspace(owner)
    type(row).objects.filter(pk=row.pk).update(phase="failed", phase_reason="image_not_found")
    answer = alice.post(
        f"workspaces/{row.slug}/exec", {"argv": ["true"]}, headers={"Idempotency-Key": "k"}, dry_run="true"
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "workspace_not_running")
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize("route", [*WRITES, *READS], ids=lambda route: f"{route[0]} {route[1]}")
def test_an_unknown_parameter_is_refused_by_name(route: Any, running: str, sleeper: str, alice: Api) -> None:
    answer = send(alice, running, route, sleeper, recursiv="true")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "recursiv")


def test_a_run_has_an_etag_that_moves_when_it_ends(running: str, sleeper: str, alice: Api) -> None:
    path = f"workspaces/{running}/exec/{sleeper}"
    etag = alice.get(path).headers["ETag"]
    assert alice.get(path, headers={"If-None-Match": etag}).status_code == 304
    assert alice.delete(path, headers={"If-Match": '"7.7"'}).status_code == 412
    assert alice.delete(path, headers={"If-Match": etag}).status_code == 204
    moved = alice.get(path, headers={"If-None-Match": etag})
    assert (moved.status_code, moved.headers["ETag"] != etag) == (200, True)


# -- keys


def test_a_key_of_another_route_or_another_body_is_409(running: str, template: Any, alice: Api) -> None:
    headers = {"Idempotency-Key": "k"}
    assert alice.post("workspaces", {"template_id": "plain"}, headers=headers).status_code == 201
    assert alice.post(f"workspaces/{running}/exec", {"argv": ["true"]}, headers=headers).status_code == 409
    headers = {"Idempotency-Key": "other"}
    assert alice.post(f"workspaces/{running}/exec", {"argv": ["true"]}, headers=headers).status_code == 200
    assert alice.post("workspaces", {"template_id": "plain"}, headers=headers).status_code == 409
    for body in ({"argv": ["false"]}, {"argv": ["true"], "stdin": "x"}, {"argv": ["true"], "background": True}):
        answer = alice.post(f"workspaces/{running}/exec", body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


def test_what_is_stored_to_compare_bodies_is_worthless_without_the_servers_key(
    running: str, alice: Api, settings: Any
) -> None:
    body = {"argv": ["true"], "env": {"TOKEN": "hunter2"}}
    alice.post(f"workspaces/{running}/exec", body, headers={"Idempotency-Key": "a"})
    settings.SECRET_KEY = "another key of another server"
    alice.client.logout()
    row, key = Exec.objects.get(), IdempotencyKey.objects.get()
    request = exec_shapes.to_request({**body, "cwd": "", "raw_stdin": b"", "timeout_s": 60.0,
                                      "output_kill_bytes": row.request["output_kill_bytes"]}, row.slug)  # fmt: skip
    from primer_site.vault import fingerprint
    from workspaces.exec_rows import digest

    assert digest(request, row.request["max_output_bytes"]) != row.request_hash
    assert fingerprint(json.dumps(body, sort_keys=True).encode()) != key.body_hash


@pytest.mark.parametrize("freed", ["before the run is stored", "after it"])
def test_a_key_that_the_first_caller_frees_while_another_has_joined_it_runs_nothing_twice(
    running: str, alice: Api, monkeypatch: pytest.MonkeyPatch, freed: str
) -> None:
    """The first caller is refused and gives the key back while the second, under the same key, is on its way to the database."""
    headers, body = {"Idempotency-Key": "k"}, {"command": "echo x >> marks; cat marks"}
    insert = exec_rows.insert

    def racing(workspace_pk: int, request: ExecRequest, **given: Any) -> tuple[int, bool]:
        first = exec_keys.Claim(given["claim_pk"], request.id, ours=True)
        if freed == "after it":
            stored = insert(workspace_pk, request, **given)
            exec_keys.release(first)
            return stored
        exec_keys.release(first)
        return insert(workspace_pk, request, **given)

    with monkeypatch.context() as patch:
        patch.setattr(exec_rows, "insert", racing)
        second = alice.post(f"workspaces/{running}/exec", body, headers=headers)
    if freed == "after it":
        assert second.status_code == 200
    else:
        assert (second.status_code, second.json()["code"], second.headers["Retry-After"]) == (503, "unavailable", "1")
        assert not Exec.objects.exists()
    third = alice.post(f"workspaces/{running}/exec", body, headers=headers)
    assert (third.status_code, third.json()["stdout"]) == (200, "x\n")
    assert Exec.objects.count() == 1


def test_a_repeat_that_overtakes_the_first_call_waits_for_its_run(
    running: str, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call finds the row before the first has brought its run to the loop."""
    headers, body = {"Idempotency-Key": "k"}, {"command": "echo x >> marks; cat marks"}
    write_here, join = loop.write_here, execs.join
    stored, joined = threading.Event(), threading.Event()

    def held(function: Any, *args: Any, **given: Any) -> Any:
        found = write_here(function, *args, **given)
        if function is execs.store and not found[1]:
            stored.set()
            assert joined.wait(20)
        return found

    async def joining(exec_pk: int, exec_id: str) -> execs.Started:
        loop.current().call_later(0.05, joined.set)  # by then it waits
        return await join(exec_pk, exec_id)

    monkeypatch.setattr(loop, "write_here", held)
    monkeypatch.setattr(execs, "join", joining)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(_closing, lambda: alice.post(f"workspaces/{running}/exec", body, headers=headers))
        assert stored.wait(20)
        second = alice.post(f"workspaces/{running}/exec", body, headers=headers)
        answers = [first.result(20), second]
    assert [(answer.status_code, answer.json()["stdout"]) for answer in answers] == [(200, "x\n")] * 2
    assert Exec.objects.count() == 1


def _closing(call: Any) -> Any:
    try:
        return call()
    finally:
        connections.close_all()


def test_a_key_of_a_refused_run_is_free_and_frees_no_later_claim(
    running: str, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers, body = {"Idempotency-Key": "k"}, {"argv": ["true"]}
    with monkeypatch.context() as patch:
        patch.setattr(execs, "RUNNING_AT_ONCE", 0)
        assert alice.post(f"workspaces/{running}/exec", body, headers=headers).status_code == 429
    assert not IdempotencyKey.objects.exists()
    assert alice.post(f"workspaces/{running}/exec", body, headers=headers).status_code == 200
    later = IdempotencyKey.objects.get()
    exec_keys.release(exec_keys.Claim(later.pk - 1, "exec-00000000000000aa", ours=True))
    assert IdempotencyKey.objects.get() == later


# -- large answers


def test_a_large_result_is_bounded_and_says_where_the_rest_is(
    running: str, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execs.finished, "__kwdefaults__", {"inline_bytes": 100_000})
    done = python(alice, running, "print('x' * 299_999)", max_output_bytes=1 << 20)
    assert (len(done["stdout"]), done["stdout_next_offset"], done["stdout_gap"]) == (100_000, 100_000, None)
    assert (done["truncated"], done["stdout_bytes"], done["stderr_next_offset"]) == (False, 300_000, None)
    page = alice.get(
        f"workspaces/{running}/exec/{done['id']}/output", offset=done["stdout_next_offset"], limit=1 << 20
    ).json()
    assert done["stdout"] + page["data"] == "x" * 299_999 + "\n"


def test_what_fits_is_whole_in_the_answer(running: str, alice: Api) -> None:
    done = python(alice, running, "print('x' * 999_999)")
    assert (len(done["stdout"]), done["stdout_next_offset"], done["truncated"]) == (1_000_000, None, False)


def test_a_result_is_never_built_on_the_loop(running: str, alice: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    builders = []

    def noted(done: ExecFinished) -> bytes:
        builders.append(threading.current_thread())
        return result_body(done)

    async def of_the_loop() -> threading.Thread:
        return threading.current_thread()

    monkeypatch.setattr("workspaces.exec_api.result_body", noted)
    run(alice, running, "echo", "hi")
    assert len(builders) == 1
    assert builders[0] is not loop.run(of_the_loop(), 5)


@given(st.binary(max_size=60), st.integers(0, 80), st.integers(0, 60))
def test_the_first_bytes_of_what_is_kept_go_on_at_their_offset(whole: bytes, keep: int, limit: int) -> None:
    keeper = Keeper(keep)
    keeper.take(0, whole)
    kept = Kept(keeper.unstored()[1] + keeper.tail(), keeper.gap).first(limit)
    rest, offset = b"", kept.next_offset
    while offset is not None:
        start, data = keeper.read(offset, 7)
        rest, offset = rest + data, start + len(data) if data else None
    assert kept.data + rest == keeper.unstored()[1] + keeper.tail()


@given(st.binary(max_size=400), st.integers(0, 120), st.integers(0, 400), st.integers(1, 50))
def test_a_page_of_the_tail_is_that_of_the_whole_tail(whole: bytes, keep: int, offset: int, limit: int) -> None:
    keeper = Keeper(keep)
    for at in range(0, len(whole), 9):
        keeper.take(at, whole[at : at + 9])
    start, data = keeper.read(offset, limit)
    if start >= keeper.tail_start and start >= keeper.head_end:
        assert data == keeper.tail()[start - keeper.tail_start :][:limit]


@given(st.binary(max_size=200))
def test_text_in_json_is_at_most_twice_its_size(data: bytes) -> None:
    data = bytes(byte & 0x7F for byte in data)
    text = as_text(data)
    if text is not None:
        assert len(json.dumps(text)) - 2 <= 2 * len(data) + data.count(0x7F) * 5
    assert (text is None) == is_costly(data)


def test_a_flood_of_nul_is_base64_everywhere(running: str, alice: Api) -> None:
    code = "import sys; sys.stdout.buffer.write(bytes(1000))"
    done = python(alice, running, code)
    assert (done["encoding"], base64.b64decode(done["stdout"])) == ("base64", bytes(1000))
    page = alice.get(f"workspaces/{running}/exec/{done['id']}/output").json()
    assert (page["encoding"], page["next_offset"]) == ("base64", 1000)
    lines = [line for line in lines_of(stream(alice, running, "python3", "-c", code)) if "data" in line]
    assert b"".join(base64.b64decode(line["data"]) for line in lines) == bytes(1000)


def test_an_answer_that_was_cut_cuts_no_character() -> None:
    outcome = ExecOutcome("exit", 0, None, 9, 0, 1.0)
    done = ExecFinished("exec-1", outcome, Kept("€€€".encode()).first(7), Kept(b""))
    body = json.loads(result_body(done))
    assert (body["stdout"], body["encoding"], body["stdout_next_offset"]) == ("€€", "utf-8", 6)
