"""Providers and templates over the API: who defines them, what a body may hold, secrets, versions, checks."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from accounts.models import AuditEntry
from tests.factories import (
    CONTAINER_BACKEND,
    CONTAINER_CONFIG,
    Api,
    api,
    make_provider,
    make_template,
    make_user,
    make_workspace,
)
from workspaces.models import Workspace, WorkspaceProvider, WorkspaceTemplate

TCP = {"kind": "tcp", "url": "tcp://engine.example:2376", "tls": {"ca": "CA", "cert": "CERT", "key": "KEY-0123456789"}}


@pytest.fixture
def engine_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A unix socket in the only directory where engines may be."""
    monkeypatch.setattr(settings, "PRIMER_SOCKET_DIRS", [str(tmp_path)])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "engine.sock"))
    yield str(tmp_path / "engine.sock")
    listener.close()


def body(path: str = "/nope", **over: Any) -> dict[str, Any]:
    config = {**CONTAINER_CONFIG, "connection": {"kind": "socket", "socket_path": path}, **over}
    return {"id": "docker-local", "provider": "container", "config": config}


def test_the_provider_of_the_recipe_is_taken_as_it_stands(engine_socket: str, bob: Api) -> None:
    asked = body(engine_socket, reachability={"kind": "host_port", "bind_host": "127.0.0.1"})
    answer = bob.post("workspace_providers", asked)
    assert answer.status_code == 201, answer.content
    assert answer.json()["config"] == asked["config"]
    assert answer.json()["status"]["health"] == "unknown"


def test_a_member_may_not_define_an_engine_and_sees_no_address(engine_socket: str, alice: Api, bob: Api) -> None:
    refused = alice.post("workspace_providers", body(engine_socket))
    assert (refused.status_code, "admin" in refused.json()["detail"]) == (403, True)
    bob.post("workspace_providers", body(engine_socket))
    seen = alice.get("workspace_providers/docker-local").json()
    assert seen["config"] == {"kind": "container", "runtime": "docker"}
    assert alice.delete("workspace_providers/docker-local").status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/proc/1/root/var/run/docker.sock", "../../x", "relative.sock", "@x", "/nope.sock",
     "{dir}/../{name}/engine.sock", "{dir}//engine.sock", "tcp://127.0.0.1:2375"],
)  # fmt: skip
def test_a_socket_path_is_refused_with_one_sentence_that_tells_nothing(
    path: str, engine_socket: str, tmp_path: Path, bob: Api
) -> None:
    answer = bob.post("workspace_providers", body(path.format(dir=tmp_path, name=tmp_path.name)))
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {
            "field": "config.connection.socket_path",
            "message": f"must be the absolute path of an engine's socket below {tmp_path}",
        }
    ]


@pytest.mark.parametrize("name", ["absent.sock", "nowhere/engine.sock", "file", "link", "directory"])
def test_of_a_path_where_sockets_may_be_only_this_is_told_that_none_is_there(
    name: str, engine_socket: str, tmp_path: Path, bob: Api
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "directory").mkdir()
    answer = bob.post("workspace_providers", body(str(tmp_path / name)))
    assert answer.status_code == 422
    assert [one["message"] for one in answer.json()["errors"]] == [
        "there is no engine's socket at this path on the server"
    ]


@pytest.mark.parametrize(
    ("over", "field", "part"),
    [
        ({"runtime": "podman"}, "config.runtime", "not supported yet"),
        ({"runtime": "containerd"}, "config.runtime", "use docker on top"),
        ({"runtime": "crio"}, "config.runtime", "must be docker"),
        ({"reachability": {"kind": "pod_ip"}}, "config.reachability.kind", "one of engine, host_port"),
        ({"connection": {"kind": "ssh"}}, "config.connection.kind", "one of socket, tcp"),
        ({"connection": {"kind": "tcp", "url": "tcp://169.254.169.254:80"}}, "config.connection.url", "link-local"),
        ({"connection": {"kind": "tcp", "url": "tcp://2852039166:80"}}, "config.connection.url", "link-local"),
        (
            {"connection": {"kind": "tcp", "url": "tcp://[::ffff:169.254.169.254]:80"}},
            "config.connection.url",
            "link-local",
        ),
        ({"connection": {"kind": "tcp", "url": "http://x:1"}}, "config.connection.url", "tcp://host:port"),
        ({"connection": {"kind": "tcp", "url": "tcp://u:p@x:1"}}, "config.connection.url", "tcp://host:port"),
        ({"privileged": True}, "config.privileged", "unknown field"),
    ],
)
def test_what_an_engine_config_may_not_say(over: Any, field: str, part: str, engine_socket: str, bob: Api) -> None:
    answer = bob.post("workspace_providers", body(engine_socket, **over))
    assert answer.status_code == 422, answer.content
    [error] = answer.json()["errors"]
    assert error["field"] == field
    assert part in error["message"]


@pytest.mark.parametrize(
    ("kind", "part"),
    [("kubernetes", "not part of this version"), ("local", "isolates nothing"), ("fake", "one of container")],
)
def test_kinds_that_this_server_does_not_offer(kind: str, part: str, bob: Api) -> None:
    answer = bob.post("workspace_providers", {"id": "x", "provider": kind, "config": {"kind": kind}})
    assert answer.status_code == 422
    assert part in answer.json()["errors"][0]["message"]


def test_local_is_taken_where_the_operator_allows_it(bob: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PRIMER_ALLOW_LOCAL", True)
    answer = bob.post("workspace_providers", {"id": "x", "provider": "local", "config": {"root_path": "/srv/x"}})
    assert (answer.status_code, answer.json()["config"]) == (201, {"kind": "local", "root_path": "/srv/x"})


def test_kind_and_provider_must_agree(engine_socket: str, bob: Api) -> None:
    answer = bob.post("workspace_providers", {**body(engine_socket), "provider": "local"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "provider")


@pytest.mark.parametrize("slug", ["", "A", "-a", "a-", "a b", "x" * 64, "a\n", "ä", True, None])
def test_bad_ids_are_422(slug: Any, engine_socket: str, bob: Api) -> None:
    answer = bob.post("workspace_providers", {**body(engine_socket), "id": slug})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "id")


def test_a_taken_id_is_409_and_a_deleted_one_is_free(engine_socket: str, bob: Api) -> None:
    bob.post("workspace_providers", body(engine_socket))
    assert bob.post("workspace_providers", body(engine_socket)).status_code == 409
    assert bob.delete("workspace_providers/docker-local").status_code == 204
    assert bob.get("workspace_providers/docker-local").status_code == 404
    assert bob.post("workspace_providers", body(engine_socket)).status_code == 201


def test_a_put_that_changes_nothing_moves_nothing(engine_socket: str, bob: Api) -> None:
    first = bob.post("workspace_providers", body(engine_socket))
    again = bob.put("workspace_providers/docker-local", first.json())
    assert again.status_code == 200, again.content
    assert again.headers["ETag"] == first.headers["ETag"]
    assert again.json() == first.json()
    assert AuditEntry.objects.filter(action="workspace_provider.update").count() == 0


def test_a_stored_socket_may_be_put_back_while_its_engine_is_down(engine_socket: str, bob: Api) -> None:
    first = bob.post("workspace_providers", body(engine_socket)).json()
    Path(engine_socket).unlink()
    again = bob.put("workspace_providers/docker-local", {**first, "description": "new"})
    assert (again.status_code, again.json()["description"]) == (200, "new")


def test_a_key_is_write_only_kept_when_masked_and_dropped_with_the_address(bob: Api) -> None:
    made = bob.post("workspace_providers", body(connection=TCP))
    assert made.status_code == 201, made.content
    assert made.json()["config"]["connection"]["tls"]["key"] == {"set": True, "last4": "6789"}
    row = WorkspaceProvider.objects.get()
    assert "KEY-0123" not in repr([row.config, row.secrets])
    assert "KEY-0123" not in repr(list(AuditEntry.objects.values()))
    same = bob.put("workspace_providers/docker-local", made.json())
    assert same.headers["ETag"] == made.headers["ETag"]
    moved = made.json()
    moved["config"]["connection"]["url"] = "tcp://elsewhere.example:2376"
    answer = bob.put("workspace_providers/docker-local", moved)
    assert answer.json()["config"]["connection"]["tls"]["key"] == {"set": False, "last4": None}


def test_an_old_etag_is_412(engine_socket: str, bob: Api) -> None:
    etag = bob.post("workspace_providers", body(engine_socket)).headers["ETag"]
    assert (
        bob.patch("workspace_providers/docker-local", {"description": "1"}, headers={"If-Match": etag}).status_code
        == 200
    )
    late = bob.patch("workspace_providers/docker-local", {"description": "2"}, headers={"If-Match": etag})
    assert (late.status_code, late.json()["code"]) == (412, "precondition_failed")


def test_an_engine_in_use_is_not_deleted_and_the_users_are_named(template: Any, owner: Any, bob: Api) -> None:
    row = make_workspace(owner)
    answer = bob.delete("workspace_providers/fake")
    assert (answer.status_code, answer.json()["code"]) == (409, "in_use")
    assert row.slug in answer.json()["detail"]
    answer = bob.delete("workspace_templates/plain")
    assert (answer.status_code, answer.json()["code"]) == (409, "in_use")


def test_check_measures_now_and_stores_what_it_found(
    transactional_db: Any, provider: Any, bob: Api, alice: Api
) -> None:
    answer = bob.post("workspace_providers/fake/check")
    assert answer.status_code == 200
    assert answer.json()["status"]["health"] == "healthy"
    assert bob.get("workspace_providers/fake").json()["status"]["checked_at"]
    assert alice.post("workspace_providers/fake/check").status_code == 403


def test_a_dead_engine_is_unreachable_with_a_sentence(transactional_db: Any, root_path: str, bob: Api) -> None:
    make_provider(config={"fault": "refuses", "root_path": root_path})
    status = bob.post("workspace_providers/fake/check").json()["status"]
    assert status["health"] == "unreachable"
    assert status["reasons"][0].endswith(".")


def test_a_body_is_checked_without_storing_it(transactional_db: Any, engine_socket: str, bob: Api) -> None:
    answer = bob.post("workspace_providers/check", body(engine_socket))  # bound, but nobody listens
    assert answer.status_code == 200
    assert answer.json()["health"] == "unreachable"
    assert WorkspaceProvider.objects.count() == 0


# -- templates

BOX: dict[str, Any] = {
    "id": "code-sandbox",
    "description": "Isolated sandbox for untrusted code.",
    "provider_id": "docker-local",
    "backend": {
        "kind": "container", "image": "primer/workspace-runtime:1.0", "cpu_cores": 1, "memory_bytes": 536870912,
        "network": {"egress": "deny_all"},
    },
}  # fmt: skip


@pytest.fixture
def engine(bob: Api) -> WorkspaceProvider:
    return make_provider("docker-local", "container")


def changed(**backend: Any) -> dict[str, Any]:
    return {**BOX, "backend": {**BOX["backend"], **backend}}


def test_the_template_of_the_recipe_is_taken_and_its_defaults_are_filled(engine: Any, bob: Api) -> None:
    answer = bob.post("workspace_templates", BOX)
    assert answer.status_code == 201, answer.content
    backend = answer.json()["backend"]
    assert backend["network"] == {"egress": "deny_all", "mode": "none"}
    assert (backend["pids_limit"], backend["disk_bytes"], backend["workdir"]) == (256, 1024**3, "/workspace")


@pytest.mark.parametrize(
    ("backend", "field"),
    [
        ({"privileged": True}, "backend.privileged"), ({"cap_add": ["SYS_ADMIN"]}, "backend.cap_add"), ({"user": "0"}, "backend.user"),
        ({"pid": "host"}, "backend.pid"), ({"devices": []}, "backend.devices"), ({"security_opt": []}, "backend.security_opt"),
        ({"sysctls": {}}, "backend.sysctls"), ({"network": {"mode": "host"}}, "backend.network.mode"),
        ({"network": {"ports": []}}, "backend.network.ports"), ({"image": "UPPER"}, "backend.image"), ({"image": ""}, "backend.image"),
        ({"image": "a b"}, "backend.image"), ({"image": "-rm"}, "backend.image"), ({"memory_bytes": 1}, "backend.memory_bytes"),
        ({"memory_bytes": "1g"}, "backend.memory_bytes"), ({"cpu_cores": 0}, "backend.cpu_cores"), ({"pids_limit": -1}, "backend.pids_limit"),
        ({"disk_bytes": 10**30}, "backend.disk_bytes"), ({"workdir": "/etc"}, "backend.workdir"), ({"workdir": "w"}, "backend.workdir"),
        ({"workdir": "/w/.."}, "backend.workdir"), ({"engine_runtime": "a b"}, "backend.engine_runtime"),
        ({"kind": "kubernetes"}, "backend.kind"), ({"kind": "local"}, "backend.image"),
    ],
)  # fmt: skip
def test_what_would_loosen_the_sandbox_does_not_exist(backend: Any, field: str, engine: Any, bob: Api) -> None:
    answer = bob.post("workspace_templates", changed(**backend))
    assert answer.status_code == 422, answer.content
    assert field in [error["field"] for error in answer.json()["errors"]]


@pytest.mark.parametrize(
    ("over", "field"),
    [
        ({"provider_id": "nope"}, "provider_id"), ({"backend": {"kind": "local"}}, "backend.kind"),
        ({"files": [{"path": "../x", "content": ""}]}, "files[0].path"), ({"files": [{"path": "x"}]}, "files[0]"),
        ({"files": [{"path": "x", "content": "", "mode": "4755"}]}, "files[0].mode"), ({"init_commands": [[]]}, "init_commands[0]"),
        ({"idle_timeout_s": 1}, "idle_timeout_s"), ({"require": "yes"}, "require"), ({"labels": {"a b": "x"}}, "labels"),
    ],
)  # fmt: skip
def test_what_a_template_may_not_say(over: Any, field: str, engine: Any, bob: Api, monkeypatch: Any) -> None:
    answer = bob.post("workspace_templates", {**BOX, **over})
    assert answer.status_code == 422, answer.content
    assert field in [error["field"] for error in answer.json()["errors"]]


def test_earlier_settings_are_kept_with_who_and_when_and_workspaces_keep_theirs(
    template: Any, owner: Any, bob: Api
) -> None:
    row = make_workspace(owner)
    bob.patch("workspace_templates/plain", {"idle_timeout_s": 60})
    bob.patch("workspace_templates/plain", {"idle_timeout_s": 60})
    versions = bob.get("workspace_templates/plain/versions").json()["items"]
    assert [(item["version"], item["by"], item["spec"]["idle_timeout_s"]) for item in versions] == [
        (2, "bob", 60), (1, "bob", None),
    ]  # fmt: skip
    row.refresh_from_db()
    assert row.spec["idle_timeout_s"] is None


def test_limits_that_the_engine_does_not_hold_are_refused_where_they_are_required(
    transactional_db: Any, provider: Any, bob: Api
) -> None:
    make_template("loose", provider=provider)
    answer = bob.patch("workspace_templates/loose", {"require": "enforced"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "require")
    assert "memory (unavailable)" in answer.json()["errors"][0]["message"]


def test_check_says_what_each_limit_is_worth(transactional_db: Any, template: Any, bob: Api) -> None:
    found = bob.post("workspace_templates/plain/check").json()
    assert found["image_present"] is True
    assert found["limits"]["disk"] == "soft"


def test_templates_are_seen_by_all_and_written_by_admins(template: Any, alice: Api) -> None:
    assert alice.get("workspace_templates").json()["total"] == 1
    for answer in (alice.patch("workspace_templates/plain", {}), alice.delete("workspace_templates/plain")):
        assert answer.status_code == 403
    assert api(make_user("victor", "viewer")).get("workspace_templates/plain").status_code == 200


def test_workspace_names_and_labels_change_and_nothing_else(template: Any, owner: Any, alice: Api) -> None:
    row = make_workspace(owner, labels={"a": "1"})
    shown = alice.get(f"workspaces/{row.slug}").json()
    kept = alice.put(f"workspaces/{row.slug}", {**shown, "name": "new", "labels": {"b": "2"}})
    assert (kept.status_code, kept.json()["name"], kept.json()["labels"]) == (200, "new", {"b": "2"})
    refused = alice.patch(f"workspaces/{row.slug}", {"env": {"A": "x"}})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "env")
    refused = alice.patch(f"workspaces/{row.slug}", {"template_id": "other"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "template_id")


def test_a_provider_keeps_its_kind_while_templates_have_it(
    engine_socket: str, bob: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what was described as a container would run on the server itself."""
    monkeypatch.setattr(settings, "PRIMER_ALLOW_LOCAL", True)
    assert bob.post("workspace_providers", body(engine_socket)).status_code == 201
    backend = {"kind": "container", "image": "primer/workspace-runtime:1.0"}
    for slug in ("one", "two"):
        made = bob.post("workspace_templates", {"id": slug, "provider_id": "docker-local", "backend": backend})
        assert made.status_code == 201, made.content
    local = {"provider": "local", "config": {"kind": "local", "root_path": "/srv/x"}}
    for method in ("PUT", "PATCH"):
        answer = bob.call(method, "workspace_providers/docker-local", local)
        assert (answer.status_code, answer.json()["code"]) == (409, "in_use"), answer.content
        assert answer.json()["detail"] == "Provider docker-local is used by templates: one, two."
    assert WorkspaceProvider.objects.get().provider == "container"
    for slug in ("one", "two"):
        assert bob.delete(f"workspace_templates/{slug}").status_code == 204
    assert bob.put("workspace_providers/docker-local", local).status_code == 200


def test_no_workspace_is_made_of_a_template_whose_provider_is_of_another_kind(template: Any, alice: Api) -> None:
    WorkspaceTemplate.objects.filter(pk=template.pk).update(backend=CONTAINER_BACKEND)  # as an earlier version left it
    answer = alice.post("workspaces", {"template_id": "plain"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), answer.content
    assert "describes a container sandbox, and its provider fake is of the kind fake" in answer.json()["detail"]
    assert not Workspace.objects.exists()


def test_a_file_in_a_change_is_whole_as_in_a_new_template(template: Any, bob: Api) -> None:
    """A PATCH leaves out fields of the template, not of the files in it."""
    answer = bob.patch("workspace_templates/plain", {"files": [{"path": "a.txt", "content": "x"}]})
    assert answer.status_code == 200, answer.content
    assert answer.json()["files"] == [{"path": "a.txt", "content": "x", "mode": "0644"}]
    answer = bob.patch("workspace_templates/plain", {"files": [{"content": "x"}]})
    assert answer.status_code == 422, answer.content
    assert answer.json()["errors"] == [{"field": "files[0].path", "message": "is required"}]
