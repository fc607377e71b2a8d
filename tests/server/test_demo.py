"""`primer demo`: the recipe on a server of its own."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.server.primer import NO_ENGINE, Home

pytestmark = pytest.mark.e2e


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path)


def demo_directories() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("primer-demo-*")}


@pytest.mark.docker
def test_the_demo_runs_the_recipe_and_leaves_nothing(home, docker_engine):
    import docker

    client = docker.APIClient(base_url=f"unix://{docker_engine}")
    before = demo_directories()
    done = home.primer("demo", DOCKER_HOST=f"unix://{docker_engine}")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"demo: ok \(\d+\.\d s\)", lines[-1])
    assert [line for line in lines if line.startswith("fail")] == []
    assert lines.count("ended: completed") == 2
    assert "ok    check     nothing left: container, volume" in lines
    (workspace,) = {found for line in lines for found in re.findall(r"workspace/(ws-[0-9a-f]{16})$", line)}
    assert client.containers(all=True, filters={"name": workspace}) == []
    client.close()
    assert demo_directories() <= before
    assert not home.config.exists(), "the caller's own context file was touched"
    assert not home.data.exists(), "the caller's own data directory was touched"


@pytest.mark.docker
def test_the_demo_shows_every_command_as_one_would_type_it(home, docker_engine):
    done = home.primer("demo", DOCKER_HOST=f"unix://{docker_engine}")
    typed = [
        re.sub(r"ws-[0-9a-f]{16}", "WS", line) for line in done.stdout.splitlines() if line.startswith("$ primectl")
    ]
    assert typed == [
        "$ primectl create -f docker-provider.yaml",
        "$ primectl create -f code-sandbox.yaml",
        "$ primectl create -f scripted-model.yaml",
        "$ primectl create -f code-runner.yaml",
        "$ primectl create workspace --set template_id=code-sandbox",
        "$ primectl session run WS --agent code-runner -i 'Run this code: print(6 * 7)'",
        "$ primectl session run WS --agent code-runner -i @snippet.txt",
        "$ primectl workspace files get WS out.txt --content",
        "$ primectl workspace files get WS sandbox_host.txt --content",
        "$ primectl workspace files get WS host_sock.txt --content",
        "$ primectl delete workspace WS",
        "$ primectl get workspace WS",
    ]


def test_without_an_engine_it_says_what_is_missing_and_offers_local_as_not_isolated(home):
    done = home.primer("demo", **NO_ENGINE)
    assert done.returncode == 1
    assert done.stderr.startswith("error: No container engine answers at /nonexistent/engine.sock.")
    assert "docker" in done.stderr
    assert "primer demo --local, which is NOT ISOLATED" in done.stderr


def test_local_runs_only_when_asked_and_is_marked(home):
    done = home.primer("demo", "--local", **NO_ENGINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT ISOLATED: the code runs on this host" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("NOT ISOLATED")


@pytest.mark.docker
def test_keep_leaves_the_data_and_the_line_that_removes_them(home, docker_engine):
    engine = {"DOCKER_HOST": f"unix://{docker_engine}"}
    done = home.primer("demo", "--keep", **engine)
    assert done.returncode == 0, done.stdout + done.stderr
    (kept,) = re.findall(
        r"kept: PRIMER_HOME=(\S+); remove it with: PRIMER_HOME=\1 primer destroy && rm -r \S+$", done.stdout, re.M
    )
    try:
        assert (Path(kept) / "primer.sqlite3").is_file()
        prepared = home.primer("doctor", "-o", "json", PRIMER_HOME=kept, **engine)
        assert '"up to date, of this install"' in prepared.stdout
        removed = home.primer("destroy", "--yes", PRIMER_HOME=kept, **engine)
        assert removed.returncode == 0, removed.stderr
        assert not Path(kept).exists()
    finally:
        shutil.rmtree(Path(kept).parent, ignore_errors=True)
