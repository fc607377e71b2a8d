"""Every command of `primer`, with the server running, without it, and where there is no install at all."""

from __future__ import annotations

import pytest

from tests.server.primer import NO_ENGINE, Home

pytestmark = pytest.mark.e2e
WITHOUT_INSTALL = {
    "prune": 1, "backup": 1, "admin create-user eve": 1, "admin reset-password": 1, "destroy --yes": 0, "doctor": 1,
}  # fmt: skip


@pytest.fixture
def beside(server) -> Home:
    """The home of a server that runs."""
    return Home(server.directory)


def run(home: Home, server, *arguments: str, **env: str):
    return home.primer(*arguments, PRIMER_HOME=str(server.home), **env)


@pytest.mark.parametrize("line", WITHOUT_INSTALL)
def test_without_an_install_a_command_says_so_and_makes_none(tmp_path, line):
    home = Home(tmp_path)
    arguments = [*line.split(), *([str(tmp_path / "file")] if line == "backup" else [])]
    done = home.primer(*arguments, **NO_ENGINE)
    assert done.returncode == WITHOUT_INSTALL[line], done.stderr
    assert "Traceback" not in done.stderr
    assert not home.data.exists()
    if line.startswith(("prune", "backup", "admin")):
        assert done.stderr.startswith(f"error: There is no install at {home.data}.")


def test_prune_runs_beside_the_server(beside, server):
    done = run(beside, server, "prune", **NO_ENGINE)
    assert done.returncode == 0, done.stderr
    assert "ok    sessions  0 removed, older than 90 days" in done.stdout
    assert "warn  engine    No container engine answers." in done.stdout
    assert server.request("GET", "/v1/me").status_code == 200


def test_prune_says_when_it_keeps_everything(beside, server):
    done = run(beside, server, "prune", PRIMER_KEEP_DAYS="0", **NO_ENGINE)
    assert "ok    kept      sessions, commands and audit entries for ever: PRIMER_KEEP_DAYS is 0" in done.stdout
    assert "sessions  0 removed" not in done.stdout


def test_backup_runs_beside_the_server(beside, server, tmp_path):
    assert run(beside, server, "backup", str(tmp_path / "file")).returncode == 0


@pytest.mark.parametrize("arguments", [["destroy", "--yes"], ["restore", "/dev/null"]])
def test_what_would_pull_the_ground_away_is_refused(beside, server, arguments):
    done = run(beside, server, *arguments)
    assert (done.returncode, done.stderr.startswith("error: ")) == (1, True)
    assert server.request("GET", "/v1/me").status_code == 200


def test_a_new_user_can_sign_in_without_a_restart(beside, server):
    password = run(beside, server, "admin", "create-user", "frank").stdout.strip()
    body = {"username": "frank", "password": password}
    assert server.request("POST", "/v1/auth/login", token="", json=body).status_code == 200


@pytest.mark.parametrize("line", ["prune", "admin create-user eve", "doctor"])
def test_the_home_of_another_instance_is_refused(server, line):
    done = Home(server.directory).primer(
        *line.split(), PRIMER_HOME=str(server.home), PRIMER_INSTANCE_ID="another", **NO_ENGINE
    )
    assert done.returncode == 1
    assert "The database belongs to the install" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_command_and_a_missing_argument_are_usage_errors(tmp_path):
    home = Home(tmp_path)
    assert home.primer("no-such-command").returncode == 2
    for command in ("backup", "restore"):
        assert home.primer(command).returncode == 2
