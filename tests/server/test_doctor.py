"""`primer doctor --deep` and `--fix`: what a sandbox proves, and what is mended."""

from __future__ import annotations

import json
import secrets
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from primer_site import deep, doctor, engine
from primer_site.errors import PrimerError
from primer_site.report import Finding, Level
from tests.server.primer import NO_ENGINE, Home
from workspaces import confinement, confinement_limits, probe
from workspaces.providers.base import SandboxSpec


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def lines(findings: list[Finding], name: str) -> list[tuple[str, str]]:
    return [(finding.level.value, finding.text) for finding in findings if finding.name == name]


# -- deep


def answer(**over: Any) -> list[dict[str, Any]]:
    """The probes' answer of a sandbox that is confined as it should be, but for `over`: name -> ok."""
    names = [*deep.PROVEN, *deep.LIMITS, "no_new_privs"]
    return [{"name": n, "expected": "e", "observed": "o", "ok": over.get(n, True)} for n in names]


def test_every_proof_is_a_line() -> None:
    found = deep.proofs(answer())
    assert {finding.level for finding in found} == {Level.OK}
    assert [text for _, text in lines(found, "probe")] == list(deep.PROVEN.values())
    assert lines(found, "limits") == [("ok", "set: memory o, pids o, cpu o, file_size o")]


@pytest.mark.parametrize("name", [*deep.PROVEN, "no_new_privs"])
def test_a_contradicted_proof_fails(name: str) -> None:
    found = deep.proofs(answer(**{name: False}))
    assert [finding.level for finding in found if finding.level is not Level.OK] == [Level.FAIL]
    assert "contradicted" in "".join(text for _, text in lines(found, "probe"))


def test_a_proof_that_could_not_be_had_is_never_ok() -> None:
    assert ("warn", "not shown: it has no route to anywhere (o)") in lines(
        deep.proofs(answer(network_route=None)), "probe"
    )


@pytest.mark.parametrize("ok", [False, None])
def test_a_limit_that_is_not_as_asked_fails(ok: bool | None) -> None:
    assert lines(deep.proofs(answer(limit_memory=ok)), "limits")[0][0] == "fail"


def test_silence_of_the_probes_fails() -> None:
    assert [finding.level for finding in deep.proofs([])] == [Level.FAIL]


def test_the_names_are_those_that_the_probes_use() -> None:
    facts = dict.fromkeys(probe.KEYS, "x")
    spec = SandboxSpec("i", "ws-0123456789abcdef", 1)
    met = confinement_limits.findings_of(confinement_limits.Plan("", "", None), spec, None, 0)
    known = {finding.name for finding in [*confinement.findings_of(facts, spec, "host"), *met]}
    assert {*deep.PROVEN, *deep.LIMITS} <= known


@pytest.mark.docker
def test_a_real_sandbox_is_started_proven_and_leaves_nothing(
    docker_engine: str, runtime_image: str, docker_view: Any
) -> None:
    found = deep.examine(
        {**engine.config(), "connection": {"kind": "socket", "socket_path": docker_engine}}, runtime_image
    )
    assert [finding.text for finding in found if finding.level is Level.FAIL] == []
    assert [finding.name for finding in found][:3] == ["sandbox", "run", "files"]
    assert lines(found, "run") == [("ok", "print(6 * 7) says 42")]
    assert len([text for level, text in lines(found, "probe") if level == "ok"]) == len(deep.PROVEN)
    assert lines(found, "limits")[0][1].startswith("set: memory 134217728, pids 64, cpu 1")
    assert found[-1] == Finding(Level.OK, "leftovers", "deleted: no container and no volume is left")
    workspace = lines(found, "sandbox")[0][1].split()[0]
    assert docker_view.client.containers(all=True, filters={"name": workspace}) == []
    assert (docker_view.client.volumes(filters={"name": workspace})["Volumes"] or []) == []


@pytest.mark.docker
def test_an_image_that_is_not_there_is_a_sentence_and_leaves_nothing(docker_engine: str) -> None:
    config = {**engine.config(), "connection": {"kind": "socket", "socket_path": docker_engine}}
    found = deep.examine(config, "primer-test/not-there:1")
    assert lines(found, "sandbox") == [("fail", "The image primer-test/not-there:1 is not on the engine.")]
    assert found[-1].level is Level.OK


@pytest.mark.docker
def test_a_program_that_says_something_else_fails(
    docker_engine: str, runtime_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deep, "CODE", "print(41)\nopen('proof.txt', 'w').write('41')\n")
    config = {**engine.config(), "connection": {"kind": "socket", "socket_path": docker_engine}}
    found = deep.examine(config, runtime_image)
    assert lines(found, "run") == [("fail", "print(6 * 7) says '41'")]
    assert lines(found, "files") == [("fail", "proof.txt reads back '41'")]
    assert found[-1].name == "leftovers"


@pytest.mark.e2e
def test_deep_without_an_engine_is_a_sentence(home: Home) -> None:
    done = home.primer("doctor", "--deep", "-o", "json", **NO_ENGINE)
    checks = json.loads(done.stdout)["checks"]
    assert done.returncode == 1
    assert [check["level"] for check in checks if check["name"] == "sandbox"] == ["fail"]
    assert "Traceback" not in done.stderr
    assert not home.data.exists()


# -- fix


@pytest.mark.e2e
def test_fix_closes_what_others_can_read_collects_static_files_and_migrates(home: Home) -> None:
    assert home.prepare().returncode == 0
    (home.data / "secret-key").chmod(0o644)
    (home.data / "static" / ".collected").write_text("older")
    with closing(sqlite3.connect(home.data / "primer.sqlite3")) as database:  # a database of the version before
        database.execute("DELETE FROM django_migrations WHERE app = 'primer_site'")
        database.execute("DROP TABLE primer_site_install")
        database.commit()
    told = home.primer("doctor", **NO_ENGINE)
    assert "1 migrations are not applied" in told.stdout
    assert stat.S_IMODE((home.data / "secret-key").stat().st_mode) == 0o644, "doctor alone changes nothing"
    done = home.primer("doctor", "--fix", **NO_ENGINE)
    assert f"ok    data      mended: others can no longer read {home.data / 'secret-key'}" in done.stdout
    assert "ok    database  mended: database: 1 migrations applied; the state before is in" in done.stdout
    assert "ok    static    mended: static files collected" in done.stdout
    again = json.loads(home.primer("doctor", "-o", "json", **NO_ENGINE).stdout)["checks"]
    assert {check["level"] for check in again if check["name"] in ("data", "database", "static")} == {"ok"}


@pytest.mark.e2e
def test_fix_does_not_migrate_under_a_running_server(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor.mended(Finding(Level.WARN, "database", "old", "primer up", lambda: doctor._migrate(server.home)))
    assert found.level is Level.WARN
    assert f"it could not be mended: The server of this data directory runs as process {server.pid}" in found.text
    assert found.fix == "primer up"


def test_what_cannot_be_mended_keeps_its_level_and_its_hint() -> None:
    def fails() -> str:
        raise PrimerError("No space.")

    found = doctor.mended(Finding(Level.FAIL, "image", "missing", "primer image build", fails))
    assert found == Finding(Level.FAIL, "image", "missing; it could not be mended: No space.", "primer image build")


def test_a_missing_image_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workspaces.image.runtime_digest", lambda **_: None)
    monkeypatch.setattr("workspaces.image.build", lambda **_: iter(["Step 1", "built primer/workspace-runtime:1.0"]))
    (found,) = doctor._image()
    assert (found.level, found.fix) == (Level.FAIL, "primer image build")
    assert doctor.mended(found) == Finding(Level.OK, "image", "mended: built primer/workspace-runtime:1.0")


@pytest.mark.docker
def test_what_a_killed_deep_check_left_is_found_and_removed_and_nothing_else(
    docker_view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, foreign = f"{deep.PREFIX}{secrets.token_hex(8)}", f"test-{secrets.token_hex(8)}"
    names = {instance: f"ws-{secrets.token_hex(8)}" for instance in (mine, foreign)}
    for instance, name in names.items():
        labels = {"primer.instance": instance, "primer.workspace": name, "primer.generation": "1"}
        docker_view.client.create_volume(name, labels=labels)
    try:
        assert mine not in engine.instances(deep.PREFIX, before=0)
        assert mine in engine.instances(deep.PREFIX, before=time.time() + 60)
        assert foreign not in engine.instances(deep.PREFIX, before=time.time() + 60)
        assert list(doctor._remains()) == [], "a check that still runs is left alone"
        monkeypatch.setattr(doctor, "OLD_S", -60.0)
        monkeypatch.setattr(engine, "instances", lambda prefix, before: [mine])
        (found,) = doctor._remains()
        assert found.level is Level.WARN
        assert doctor.mended(found).level is Level.OK
        left = {volume["Name"] for volume in docker_view.client.volumes()["Volumes"] or []}
        assert left & set(names.values()) == {names[foreign]}
    finally:
        for name in names.values():
            if docker_view.client.volumes(filters={"name": name})["Volumes"]:
                docker_view.client.remove_volume(name)


# -- small ones


@pytest.mark.parametrize(
    ("security", "level"),
    [({"seccomp", "apparmor"}, "ok"), ({"seccomp", "selinux"}, "ok"), ({"seccomp"}, "warn"), (set(), "warn")],
)
def test_an_engine_without_a_second_barrier_is_told(security: set[str], level: str) -> None:
    assert doctor.hardening(security).level == level


def test_a_database_on_the_engines_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "data_root", lambda: str(tmp_path))
    assert "same file system" in lines(list(doctor._space(tmp_path)), "space")[1][1]
    monkeypatch.setattr(engine, "data_root", lambda: "/proc")
    assert len(lines(list(doctor._space(tmp_path)), "space")) == 1
    monkeypatch.setattr(engine, "data_root", lambda: "/not/on/this/host")
    assert len(lines(list(doctor._space(tmp_path)), "space")) == 1
