"""Asked, applied and proven as people read it, the verdict of a session's start, and what a template said before."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.models import AgentSession
from tests.console.site import browser, no_manifest
from tests.factories import make_admin, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_session
from workspaces.models import Workspace
from workspaces.pages.confinement import NEIGHBOURS, table

__all__ = ["no_manifest"]
pytestmark = pytest.mark.django_db


def item(network: str, egress: str = "enforced", **ok: bool | None) -> dict[str, Any]:
    checks = [
        {"name": name, "expected": "nothing answers", "observed": "172.17.0.1", "ok": one} for name, one in ok.items()
    ]
    limit = {"asked": "deny_all", "applied": "deny_all", "enforced": egress}
    return {"applied": {"network": network, "limits": {"egress": limit}}, "confinement": {"checks": checks}}


def words(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {row.title: (row.applied, row.word) for row in table(found)}


@pytest.mark.parametrize(
    ("network", "ok", "expected"),
    [
        ("none", True, ("no network: loopback only", "holds")),
        ("none", False, ("no network: loopback only", "contradicted")),
        ("internal", None, ("a network of its own, without a way out", "not checked")),
        ("egress bridge", True, ("one bridge for all; neighbours are kept apart on it", "not checked")),
        ("host", False, ("", "contradicted")),
    ],
)
def test_neighbours_and_services_of_the_host_have_a_row_of_their_own(
    network: str, ok: bool | None, expected: tuple[str, str]
) -> None:
    assert words(item(network, network_gateway=ok))[NEIGHBOURS] == expected


def test_a_limit_that_was_met_and_one_that_could_not_be_are_told_apart() -> None:
    limits = {
        name: {"asked": 256, "applied": 256, "enforced": worth}
        for name, worth in (("pids", "enforced"), ("disk", "soft"))
    }

    def word(title: str, **ok: bool | None) -> str:
        checks = [{"name": name, "expected": "", "observed": "", "ok": one} for name, one in ok.items()]
        return words({"applied": {"limits": limits}, "confinement": {"checks": checks}})[title][1]

    assert word("Processes", limit_pids=True, pids_exhausted=True) == "holds"
    assert word("Processes", limit_pids=True, pids_exhausted=None) == "holds"  # read back; not met beside a program
    assert word("Processes", limit_pids=None, pids_exhausted=None) == "not checked"
    assert word("Processes", limit_pids=True, pids_exhausted=False) == "contradicted"
    assert word("Disk", limit_file_size=True, file_size_exhausted=True) == "soft"
    assert word("Disk", limit_file_size=True, disk_exhausted=False) == "contradicted"


def test_one_contradiction_is_named_on_the_workspace_and_on_what_ran_in_it() -> None:
    alice = make_user("alice")
    config = {
        "kind": "container",
        "runtime": "docker",
        "connection": {"kind": "socket", "socket_path": "/nowhere.sock"},
    }
    workspace = make_workspace(alice, make_template("boxed", make_provider("box", "container", config)))
    session = make_session(alice, workspace=workspace)
    found = item("none", network_gateway=False)
    Workspace.objects.update(
        phase="running",
        ref={"kind": "fake", "workspace_id": "x", "generation": 1},
        applied=found["applied"],
        confinement={**found["confinement"], "verdict": "failed", "checked_at": "2026-01-01T00:00:00Z"},
    )
    AgentSession.objects.update(confinement="failed")
    client = browser(alice)
    page = client.get(f"/workspaces/{session.workspace.slug}/").content.decode()
    assert "asked for <bdi>nothing answers</bdi>, the sandbox shows <code><bdi>172.17.0.1</bdi></code>" in page
    assert "the probes contradicted what was asked" in client.get(f"/sessions/{session.slug}/").content.decode()
    AgentSession.objects.update(confinement="proven")
    assert "the probes contradicted" not in client.get(f"/sessions/{session.slug}/").content.decode()


def test_the_history_of_a_template_shows_each_change_beside_what_was_there() -> None:
    from accounts.audit import Actor
    from workspaces.services import template_update

    admin = make_admin("root")
    template = make_template()
    template_update(by=Actor(admin), row=template, data={"description": "second <b>words</b>", "idle_timeout_s": 60})
    page = browser(make_user()).get(f"/workspaces/templates/{template.slug}/history/").content.decode()
    assert "Version 2" in page
    assert "Created." in page
    assert "second &lt;b&gt;words&lt;/b&gt;" in page
    assert "idle_timeout_s" in page
    assert "root" in page
