"""`primer up --prepare-only`: everything but serving."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing

import pytest
import yaml

from tests.server.primer import NO_ENGINE, Home

pytestmark = pytest.mark.e2e


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path)


def rows(home: Home, query: str) -> list[tuple]:
    with closing(sqlite3.connect(home.data / "primer.sqlite3")) as database:
        return database.execute(query).fetchall()


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_missing_engine_is_a_warning_with_the_next_step_and_stops_nothing(home):
    done = home.prepare()
    assert done.returncode == 0, done.stderr
    assert "warn  engine    No container engine answers at /nonexistent/engine.sock." in done.stdout
    assert "primer doctor" in done.stdout


def test_a_second_time_changes_nothing_and_shows_no_password(home):
    first, second = home.prepare(), home.prepare()
    assert "(shown once)" in first.stdout
    assert second.returncode == 0, second.stderr
    assert "ok    database  up to date" in second.stdout
    assert "ok    static    unchanged" in second.stdout
    assert "shown once" not in second.stdout


def test_what_it_writes_is_readable_by_its_user_alone(home):
    home.prepare()
    assert mode(home.data) == 0o700
    assert {path.name: mode(path) for path in home.data.iterdir() if path.is_file() and mode(path) & 0o077} == {}
    assert mode(home.config) == 0o600


def test_the_first_password_is_random_kept_in_a_file_and_printed_once(home):
    done = home.prepare()
    kept = (home.data / "initial-password").read_text().strip()
    assert f"Admin    admin / {kept} (shown once)" in done.stdout
    assert len(kept) >= 20


def test_a_given_first_password_is_neither_printed_nor_kept(home):
    done = home.prepare(PRIMER_INIT_ADMIN_PASSWORD="quite-a-long-pass-phrase")
    assert not (home.data / "initial-password").exists()
    assert "quite-a-long-pass-phrase" not in done.stdout + done.stderr


def test_a_given_first_password_that_is_too_weak_is_refused_in_words(home):
    done = home.prepare(PRIMER_INIT_ADMIN_PASSWORD="12345")
    assert done.returncode == 1
    assert done.stderr.startswith("error: The password is not good enough.")
    assert "Traceback" not in done.stderr


def test_a_given_token_that_is_too_short_is_refused_in_words(home):
    done = home.prepare(PRIMER_INIT_TOKEN="short")
    assert done.returncode == 1
    assert "PRIMER_INIT_TOKEN must be 40 or more" in done.stderr


def test_a_database_of_another_install_is_refused(home):
    home.prepare()
    (home.data / "instance-id").write_text("another\n")
    done = home.prepare()
    assert done.returncode == 1
    assert "The database belongs to the install" in done.stderr
    assert "hint: Set PRIMER_INSTANCE_ID" in done.stderr


def test_a_lost_key_is_refused_before_anything_is_written(home):
    home.prepare()
    (home.data / "encryption-keys").write_text("not a key\n")
    done = home.prepare()
    assert done.returncode == 1
    assert "fail  settings  primer.E002" in done.stdout


def test_the_database_is_copied_before_a_migration(home):
    home.prepare()
    with closing(sqlite3.connect(home.data / "primer.sqlite3")) as database:  # as a version without it left it
        database.execute("DROP TABLE primer_site_install")
        database.execute("DELETE FROM django_migrations WHERE app = 'primer_site'")
        database.commit()
    done = home.prepare()
    assert "the state before is in" in done.stdout, done.stdout + done.stderr
    (copy,) = (home.data / "copies").iterdir()
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("SELECT username FROM accounts_user").fetchall() == [("admin",)]
        tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'primer_site_install'").fetchall()
    assert tables == []
    assert mode(copy) == 0o600


def test_samples_without_an_engine_are_the_model_and_its_agent(home):
    home.prepare()
    assert rows(home, "SELECT slug FROM agents_llmprovider") == [("scripted",)]
    assert rows(home, "SELECT slug FROM agents_agent") == [("default-runner",)]
    assert rows(home, "SELECT slug FROM workspaces_workspaceprovider") == []


def test_a_key_in_the_environment_makes_a_provider_that_names_it_and_stores_nothing_of_it(home):
    home.prepare(ANTHROPIC_API_KEY="sk-sentinel-of-the-environment")
    assert rows(home, "SELECT slug FROM agents_llmprovider ORDER BY slug") == [("anthropic",), ("scripted",)]
    stored = str(rows(home, "SELECT config, secrets FROM agents_llmprovider"))
    assert "api_key_env" in stored
    assert "sk-sentinel" not in stored


@pytest.mark.docker
def test_samples_with_an_engine_never_use_the_ids_of_the_recipe(home, docker_engine):
    done = home.prepare(DOCKER_HOST=f"unix://{docker_engine}")
    assert rows(home, "SELECT slug FROM workspaces_workspaceprovider") == [("docker",)], done.stdout
    assert rows(home, "SELECT slug FROM workspaces_workspacetemplate") == [("default",)]
    again = home.prepare(DOCKER_HOST=f"unix://{docker_engine}")
    assert "ok    samples   not needed" in again.stdout


def test_no_samples_leaves_the_database_empty(home):
    home.prepare("--no-samples")
    assert rows(home, "SELECT slug FROM agents_llmprovider") == []


def test_the_context_gets_a_token_that_is_kept_when_it_still_works(home):
    home.prepare()
    first = yaml.safe_load(home.config.read_text())
    home.prepare()
    assert yaml.safe_load(home.config.read_text()) == first
    assert first["current-context"] == "local"
    assert first["contexts"]["local"]["server"] == "http://127.0.0.1:8000"
    assert rows(home, "SELECT count(*) FROM accounts_token WHERE name LIKE 'primer up: %'") == [(1,)]


def test_a_second_context_file_gets_a_token_of_its_own_and_the_first_keeps_its(home):
    home.prepare()
    first = yaml.safe_load(home.config.read_text())
    other = home.directory / "other.yaml"
    home.prepare(PRIMECTL_CONFIG=str(other))
    second = yaml.safe_load(other.read_text())
    assert second["contexts"]["local"]["token"] != first["contexts"]["local"]["token"]
    home.prepare()
    assert yaml.safe_load(home.config.read_text()) == first  # it still opens this install
    other.unlink()
    home.prepare(PRIMECTL_CONFIG=str(other))  # a lost file: its token ends with it
    names = [name for (name,) in rows(home, "SELECT name FROM accounts_token ORDER BY name")]
    assert names == [f"primer up: {home.directory / 'other.yaml'}", f"primer up: {home.config}"]


def test_a_context_of_another_server_is_left_alone_unless_told_so(home):
    foreign = {
        "current-context": "local",
        "contexts": {"local": {"server": "https://primer.example", "token": "x" * 40}},
    }
    home.config.write_text(yaml.safe_dump(foreign))
    home.config.chmod(0o600)
    done = home.prepare()
    assert yaml.safe_load(home.config.read_text()) == foreign
    assert "warn  context   context local belongs to https://primer.example and was left alone" in done.stdout
    home.prepare("--yes")
    assert yaml.safe_load(home.config.read_text())["contexts"]["local"]["server"] == "http://127.0.0.1:8000"


def test_a_context_file_that_is_not_yaml_is_a_warning(home):
    home.config.write_text("contexts: [")
    done = home.prepare()
    assert done.returncode == 0
    assert "warn  context" in done.stdout
    assert home.config.read_text() == "contexts: ["


def test_commands_on_an_install_that_was_never_prepared_say_what_to_run(home):
    done = home.primer("admin", "create-user", "alice", **NO_ENGINE)
    assert done.returncode == 1
    assert done.stderr.startswith("error: There is no install at ")
    assert done.stderr.endswith("\nhint: Run: primer up --prepare-only, or set PRIMER_HOME\n")
