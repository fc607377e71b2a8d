"""Audit of what people do inside a workspace: the runs that they start and end, the files that they change."""

from __future__ import annotations

import json
import re

import pytest
from django.test import Client

from accounts.models import AuditEntry
from primer_site import loop
from primer_site.errors import Timeout
from tests.api.conftest import World
from tests.eventually import eventually
from tests.workspaces.conftest import until
from workspaces import execs
from workspaces.execution import ExecRequest
from workspaces.pages.files import file_url


def lines_about(kind: str) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(kind=kind).order_by("pk"))


def test_changes_of_files_leave_where_and_what_and_never_their_content(inhabited: World) -> None:
    alice, slug = inhabited.client("alice"), inhabited.workspace.slug
    files, first = f"workspaces/{slug}/files", AuditEntry.objects.filter(kind="file").latest("pk").pk
    old = alice.get(f"{files}/read", path="a").json()["etag"]
    etag = alice.put(files, b"sentinel-of-a-file", path="a", mode="0600").headers["ETag"].strip('"')
    assert alice.post(f"{files}/dir", {"path": "d"}).status_code == 201
    assert alice.post(f"{files}/dir", {"path": "d"}).status_code == 201  # there already: no change
    assert alice.post(f"{files}/move", {"source": "a", "target": "d/b"}).status_code == 200
    assert alice.put(files, {"content": "new"}, path="c").status_code == 204
    replaced = {"source": "c", "target": "d/b", "overwrite": True}
    assert alice.post(f"{files}/move", replaced).status_code == 200
    assert alice.delete(files, path="d", recursive="true").status_code == 204
    lines = [line for line in lines_about("file") if line.pk > first]
    assert {(line.object_id, line.actor_name, line.token, line.address) for line in lines} == {
        (slug, "alice", "test", "127.0.0.1")
    }
    kept = [(line.action, line.before, line.after) for line in lines]
    new = {"path": "c", "kind": "file", "size_bytes": 3, "etag": (kept[3][2] or {})["etag"], "mode": "0644"}
    a = {"kind": "file", "size_bytes": 18}
    assert kept == [
        (
            "file.write", {"path": "a", "kind": "file", "size_bytes": 3, "etag": old},
            {"path": "a", **a, "etag": etag, "mode": "0600"},
        ),
        ("file.mkdir", None, {"path": "d", "kind": "dir", "size_bytes": (kept[1][2] or {})["size_bytes"]}),
        ("file.move", {"path": "a", **a}, {"path": "d/b", **a}),
        ("file.write", None, new),
        (
            "file.move", {"path": "c", "kind": "file", "size_bytes": 3},
            {"path": "d/b", "kind": "file", "size_bytes": 3, "replaced": {"path": "d/b", **a, "etag": etag}},
        ),
        ("file.delete", {"path": "d", "kind": "dir", "size_bytes": (kept[5][1] or {})["size_bytes"]}, None),
    ]  # fmt: skip
    assert "sentinel" not in json.dumps(kept)
    shown = inhabited.client("bob").get("audit", object_id=slug, object_kind="file").json()
    assert shown["total"] == len(lines) + 1  # the fixture's own


def test_a_change_of_a_file_that_is_refused_or_changes_nothing_leaves_no_line(inhabited: World) -> None:
    alice, files = inhabited.client("alice"), f"workspaces/{inhabited.workspace.slug}/files"
    before = AuditEntry.objects.count()
    assert alice.put(files, {"content": "x"}, {"If-Match": '"other"'}, path="a").status_code == 412
    assert alice.put(files, {"content": "x"}, {"If-None-Match": "*"}, path="a").status_code == 412
    assert alice.delete(files, path="gone").status_code == 404
    assert alice.post(f"{files}/move", {"source": "gone", "target": "b"}).status_code == 404
    assert alice.post(f"{files}/dir", {"path": "a"}).status_code == 409
    assert AuditEntry.objects.count() == before


def test_a_change_whose_answer_never_came_leaves_a_line_that_says_so(
    inhabited: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise Timeout("The operation did not finish within 60 s.")

    monkeypatch.setattr("workspaces.file_changes.inside", silent)
    alice, files = inhabited.client("alice"), f"workspaces/{inhabited.workspace.slug}/files"
    assert alice.put(files, {"content": "x"}, path="a").status_code == 504
    assert alice.delete(files, path="b").status_code == 504
    kept = [(line.action, line.after) for line in lines_about("file")][-2:]
    assert kept == [
        (f"file.{verb}", {"path": path, "outcome": "unknown"}) for verb, path in (("write", "a"), ("delete", "b"))
    ]


def test_the_repeat_of_a_key_leaves_one_line(inhabited: World) -> None:
    alice, files = inhabited.client("alice"), f"workspaces/{inhabited.workspace.slug}/files"
    for _ in range(2):
        answer = alice.post(f"{files}/dir", {"path": "d", "parents": False}, {"Idempotency-Key": "k"})
        assert answer.status_code == 201
    assert [line.action for line in lines_about("file")].count("file.mkdir") == 1


def test_names_that_no_database_takes_and_endless_ones_are_shown_as_far_as_they_can(inhabited: World) -> None:
    alice, files = inhabited.client("alice"), f"workspaces/{inhabited.workspace.slug}/files"
    long = "/".join(["d" * 200] * 8)
    assert alice.put(f"{files}?path=bad%FFname", {"content": "x"}).status_code == 204
    assert alice.put(files, {"content": "x"}, path=long).status_code == 204
    odd, cut = [(line.after or {})["path"] for line in lines_about("file")[-2:]]
    assert odd == "bad\\xffname"
    assert len(cut) == 1000
    assert cut.endswith("…")
    assert inhabited.client("bob").get("audit", object_kind="file").status_code == 200


def test_a_file_that_nobody_may_read_is_replaced_and_its_size_noted(inhabited: World) -> None:
    alice, path = inhabited.client("alice"), f"workspaces/{inhabited.workspace.slug}"
    body = {"command": "chmod 000 a"}
    assert alice.post(f"{path}/exec", body).json()["exit_code"] == 0
    assert alice.put(f"{path}/files", {"content": "new"}, path="a").status_code == 204
    assert lines_about("file")[-1].before == {"path": "a", "kind": "file", "size_bytes": 3}


def test_a_run_leaves_its_arguments_and_who_ended_it(inhabited: World) -> None:
    alice, path = inhabited.client("alice"), f"workspaces/{inhabited.workspace.slug}/exec"
    body = {
        "argv": ["sleep", "600"],
        "background": True,
        "env": {"B": "value-of-b", "A": "value-of-a"},
        "stdin": "sentinel",
    }
    made = alice.post(path, body, {"X-Request-ID": "request-of-test"}).json()["id"]
    eventually(lambda: AuditEntry.objects.filter(object_id=made).exists(), 10, "the line of a run in the background")
    assert alice.delete(f"{path}/{made}").status_code == 204
    assert alice.delete(f"{path}/{made}").status_code == 204  # it has ended: no change
    start, kill = [line for line in lines_about("exec") if line.object_id == made]
    assert (start.action, start.actor_name, start.token, start.address, start.request_id) == (
        "exec.start", "alice", "test", "127.0.0.1", "request-of-test"
    )  # fmt: skip
    slug = inhabited.workspace.slug
    assert start.after == {
        "workspace_id": slug, "argv": ["sleep", "600"], "cwd": "", "env_names": ["A", "B"], "stdin_bytes": 8,
        "timeout_s": 60.0, "background": True,
    }  # fmt: skip
    assert (kill.action, kill.actor_name) == ("exec.kill", "alice")
    assert kill.before == {"workspace_id": slug, "state": "running", "survivors": 0}
    assert kill.after == {"state": "ended", "survivors": 0}
    assert not re.search("sentinel|value-of", json.dumps([start.after, kill.before, kill.after]))


def test_an_answered_run_has_its_line_and_the_repeat_of_its_key_has_none(inhabited: World) -> None:
    """Also one whose program could not be started; a run that is refused was never one."""
    alice, path = inhabited.client("alice"), f"workspaces/{inhabited.workspace.slug}/exec"
    before = len(lines_about("exec"))
    for _ in range(2):
        assert alice.post(path, {"argv": ["true"]}, {"Idempotency-Key": "k"}).status_code == 200
    assert len(lines_about("exec")) == before + 1
    assert alice.post(path, {"argv": ["no-such-program"]}).status_code == 422
    assert len(lines_about("exec")) == before + 2
    assert alice.post(path, {"argv": []}).status_code == 422
    assert len(lines_about("exec")) == before + 2


def test_a_secret_of_the_workspace_in_an_argument_is_masked_and_long_ones_are_cut(inhabited: World) -> None:
    alice, secret = inhabited.client("alice"), "sentinel-in-argument-1234567890"
    made = alice.post("workspaces", {"template_id": "inhabited", "env": {"KEY": {"secret": secret}}}).json()["id"]
    until(alice, made, "running")
    argv = ["true", f"--key={secret}", "x" * 3000, *["y"] * 50]
    run = alice.post(f"workspaces/{made}/exec", {"argv": argv, "cwd": "."}).json()["id"]
    shown = (AuditEntry.objects.get(object_id=run).after or {})["argv"]
    assert shown[:2] == ["true", "--key=[secret]"]
    assert (shown[-1], len(json.dumps(shown)) < 3000) == ("… 50 more", True)


def test_an_agents_runs_are_in_its_transcript_and_leave_no_line(inhabited: World) -> None:
    before = AuditEntry.objects.count()
    request = ExecRequest("exec-of-a-session", ("true",))

    async def run() -> None:
        async for _ in execs.stream(inhabited.workspace.pk, request, session_id=inhabited.session.slug):
            pass

    loop.run(run(), 30)
    assert AuditEntry.objects.count() == before


def test_changes_by_the_console_leave_the_same_lines_without_a_token(inhabited: World) -> None:
    slug, client = inhabited.workspace.slug, Client()
    client.force_login(inhabited.alice)
    first = lines_about("file")[-1].pk
    for path, form in (
        ("", {"do": "file", "name": "n"}), ("", {"do": "folder", "name": "d"}), ("n", {"do": "save", "content": "text"}),
        ("n", {"do": "move", "target": "d/n"}), ("d", {"do": "delete"}),
    ):  # fmt: skip
        assert client.post(file_url(slug, path), form).status_code < 400, form
    lines = [line for line in lines_about("file") if line.pk > first]
    assert [line.action for line in lines] == ["file.write", "file.mkdir", "file.write", "file.move", "file.delete"]
    assert {(line.object_id, line.actor_name, line.token) for line in lines} == {(slug, "alice", "")}
