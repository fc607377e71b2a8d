"""`primer doctor`, `primer admin`, `primer destroy`, and what the command says without its extra."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.server.primer import NO_ENGINE, ROOT, Home

pytestmark = pytest.mark.e2e


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path)


def of(server) -> Home:
    return Home(server.directory)


def found(done, name: str) -> list[dict]:
    return [check for check in json.loads(done.stdout)["checks"] if check["name"] == name]


# doctor


def test_doctor_on_a_bare_machine_names_what_mends_it_and_changes_nothing(home):
    done = home.primer("doctor", "-o", "json", **NO_ENGINE)
    assert done.returncode == 1
    assert found(done, "data")[0] | {"text": ""} == {"level": "warn", "name": "data", "text": "", "fix": "primer up"}
    assert found(done, "engine")[0]["level"] == "fail"
    assert found(done, "engine")[0]["fix"]
    assert not home.data.exists()


def test_doctor_without_failures_but_with_warnings_is_8(home, docker_engine):
    done = home.primer("doctor", DOCKER_HOST=f"unix://{docker_engine}")
    assert "warn  data" in done.stdout
    assert done.returncode in (1, 8)
    assert (done.returncode == 8) == ("\nfail" not in done.stdout)


def test_doctor_sees_the_server(server):
    done = of(server).primer("doctor", "-o", "json", PRIMER_HOME=str(server.home))
    assert found(done, "server") == [
        {"level": "ok", "name": "server", "text": f"{server.url}, process {server.pid}", "fix": ""}
    ]
    assert found(done, "database")[0]["level"] == "ok"


def test_doctor_fails_on_a_key_that_others_can_read(home):
    home.prepare()
    (home.data / "secret-key").chmod(0o644)
    done = home.primer("doctor", "-o", "json", **NO_ENGINE)
    assert f"chmod 600 {home.data / 'secret-key'}" in [check["fix"] for check in found(done, "data")]
    assert done.returncode == 1


def test_doctor_fails_on_the_database_of_another_install(home):
    home.prepare()
    (home.data / "instance-id").write_text("another\n")
    done = home.primer("doctor", "-o", "json", **NO_ENGINE)
    assert found(done, "database")[0]["level"] == "fail"


def test_doctor_fails_on_a_broken_database(home):
    home.prepare()
    (home.data / "primer.sqlite3").write_bytes(b"not a database " * 1000)
    done = home.primer("doctor", "-o", "json", **NO_ENGINE)
    assert found(done, "database")[0]["level"] == "fail"
    assert "Traceback" not in done.stderr


# admin


def login(server, username: str, password: str):
    return server.request("POST", "/v1/auth/login", token="", json={"username": username, "password": password})


def test_a_second_person_gets_in_with_the_password_that_is_printed_once(server):
    done = of(server).primer("admin", "create-user", "carol", PRIMER_HOME=str(server.home))
    assert done.returncode == 0, done.stderr
    (password,) = done.stdout.splitlines()
    token = login(server, "carol", password).json()["token"]
    assert server.request("GET", "/v1/me", token=token).json()["role"] == "member"


def test_a_reset_ends_the_tokens_bought_with_the_old_password(server):
    primer = of(server).primer
    old = primer("admin", "create-user", "dora", "--role", "viewer", PRIMER_HOME=str(server.home)).stdout.strip()
    token = login(server, "dora", old).json()["token"]
    new = primer("admin", "reset-password", "dora", PRIMER_HOME=str(server.home)).stdout.strip()
    assert server.request("GET", "/v1/me", token=token).status_code == 401
    assert login(server, "dora", old).status_code == 401
    assert login(server, "dora", new).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("create-user", "admin"), "error: There is a user admin already."),
        (("create-user", "no spaces"), "error: The username is not valid."),
        (("reset-password", "nobody"), "error: There is no user nobody."),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_1(server, arguments, sentence):
    done = of(server).primer("admin", *arguments, PRIMER_HOME=str(server.home))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == sentence


# destroy


def test_destroy_refuses_while_the_server_runs(server):
    done = of(server).primer("destroy", "--yes", PRIMER_HOME=str(server.home))
    assert done.returncode == 1
    assert f"runs as process {server.pid} and serves {server.url}" in done.stderr
    assert (server.home / "primer.sqlite3").exists()


def test_destroy_without_an_engine_keeps_the_data_that_find_the_rest(home):
    home.prepare()
    done = home.primer("destroy", "--yes", **NO_ENGINE)
    assert done.returncode == 1
    assert "The data directory was kept." in done.stderr
    assert (home.data / "instance-id").exists()


@pytest.mark.docker
def test_destroy_asks_before_it_removes_the_data(home, docker_engine):
    engine = {"DOCKER_HOST": f"unix://{docker_engine}"}
    home.prepare()
    refused = home.primer("destroy", given="n\n", **engine)
    assert (refused.returncode, home.data.exists()) == (0, True)
    done = home.primer("destroy", given="y\n", **engine)
    assert (done.returncode, home.data.exists()) == (0, False)


@pytest.mark.docker
def test_destroy_removes_what_carries_the_label_of_this_install(home, docker_engine):
    import docker

    home.prepare()
    instance = (home.data / "instance-id").read_text().strip()
    client = docker.APIClient(base_url=f"unix://{docker_engine}")
    name = f"ws-{instance}"
    client.create_volume(name, labels={"primer.instance": instance, "primer.workspace": name, "primer.generation": "1"})
    client.create_network(f"primer-egress-{instance}", labels={"primer.instance": instance})
    try:
        done = home.primer("destroy", "--yes", DOCKER_HOST=f"unix://{docker_engine}")
        assert "ok    engine    1 volume, 1 network removed" in done.stdout, done.stdout + done.stderr
        assert (client.volumes(filters={"name": name})["Volumes"] or []) == []
        assert client.networks(filters={"label": f"primer.instance={instance}"}) == []
    finally:
        client.close()


def test_destroy_of_nothing_says_so(home):
    done = home.primer("destroy", "--yes", **NO_ENGINE)
    assert (done.returncode, done.stdout) == (0, f"ok    data      nothing at {home.data}\n")


# the command itself


def test_help_is_quick_and_imports_no_django():
    code = "import sys; from primer_site import command; print([n for n in ('django', 'docker', 'yaml') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_the_server_part_it_says_how_to_install_it():
    code = (
        "import sys; sys.modules['django'] = None; sys.argv = ['primer', 'doctor']\n"
        "from primer_site.command import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "hint: in a checkout of Primer, run: pip install '.[server]'"
    assert "pip install primer" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["up"],
        ["worker"],
        ["doctor"],
        ["demo"],
        ["image", "build"],
        ["admin", "create-user"],
        ["admin", "reset-password"],
        ["prune"],
        ["backup"],
        ["restore"],
        ["destroy"],
    ],
)
def test_every_command_shows_two_examples(home, command):
    done = home.primer(*command, "--help")
    examples = re.findall(rf"^  (?:\w+=\S+ )?primer {' '.join(command)}\b.*", done.stdout, re.MULTILINE)
    assert done.returncode == 0
    assert len(examples) >= 2


def test_an_installation_that_was_broken_off_is_named_with_what_finishes_it(home):
    code = (
        f"import sys; sys.prefix = {str(home.directory)!r}; sys.argv = ['primer', 'doctor']; "
        "from primer_site.command import main; main()"
    )
    (home.directory / ".unfinished").touch()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: the installation in {home.directory} was broken off, so parts of it may be missing\n"
        "hint: make venv finishes it\n"
    )


# worker


def test_a_worker_refuses_sqlite_with_the_reason_and_makes_nothing(home):
    done = home.primer("worker")
    error, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert error.startswith("error: A worker needs a Postgres database")
    assert "SQLite" in error
    assert hint.startswith("hint: primer up ")
    assert not home.data.exists()


def test_the_help_lists_the_worker(home):
    assert re.search(r"^  worker +Runs sessions", home.primer("--help").stdout, re.MULTILINE)
