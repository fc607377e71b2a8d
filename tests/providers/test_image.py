"""The runtime image: what is in it, what is not, and a sentence for each way in which its build can fail."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import requests
from docker.errors import APIError

from tests.engine import INSTANCE, DockerView
from workspaces import image
from workspaces.image import base
from workspaces.image.base import ImageBuildFailed
from workspaces.providers.base import EngineUnavailable, ProviderError
from workspaces.runtime import build as runtime

TAG = f"primer-test/built-{INSTANCE}:1"


@pytest.fixture
def engine_url(docker_view: DockerView) -> str:
    return f"unix://{docker_view.socket_path}"


@pytest.fixture
def tag(docker_view: DockerView) -> Iterator[str]:
    yield TAG
    if docker_view.client.images(TAG):
        docker_view.client.remove_image(TAG, force=True)


def run(view: DockerView, reference: str, *command: str) -> str:
    body = {"Image": reference, "Cmd": list(command), "HostConfig": {"NetworkMode": "none"}}
    container = view.client.create_container_from_config(body)["Id"]
    try:
        view.client.start(container)
        assert view.client.wait(container)["StatusCode"] == 0, view.client.logs(container)
        return str(view.client.logs(container).decode().strip())
    finally:
        view.client.remove_container(container, force=True)


def test_without_an_engine_the_build_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="No container engine answers at"):
        list(image.build(engine_url=f"unix://{tmp_path}/none.sock"))


@pytest.mark.parametrize("fault", [requests.ReadTimeout("Read timed out."), APIError("500: no space left")])
def test_a_build_whose_image_has_its_name_is_done_also_when_what_it_replaced_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    client = Mock()
    client.inspect_image.return_value = {"Id": "sha256:old", "Config": {"Labels": {}}, "RepoTags": ["kept"]}
    client.images.side_effect = fault
    monkeypatch.setattr(image, "connect", lambda url: client)
    for step in ("choose", "_docker_build", "_verify"):
        monkeypatch.setattr(image, step, lambda *_, result="sha256:" + "n" * 64: _steps(result))
    *_, told, last = image.build(tag="a:1", force=True)
    assert told.startswith("warning: images that this one replaced may be left")
    assert last.startswith("built a:1 (nnn")
    client.tag.assert_called_once()
    with pytest.raises(ProviderError):
        image.drop_replaced("a:1")


def _steps(result: str) -> Generator[str, None, str]:
    yield "Step"
    return result


@pytest.mark.parametrize("name", ["", "-x", "a;b", "A", "../a", "a b"])
def test_what_is_not_the_name_of_a_package_is_refused_before_anything_runs(name: str) -> None:
    with pytest.raises(ImageBuildFailed, match="not the name of a Debian package"):
        list(image.build(packages=[name], engine_url="unix:///nowhere.sock"))


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("a/b:1", ("a/b", "1")),
        ("a/b", ("a/b", "latest")),
        ("h:5000/b", ("h:5000/b", "latest")),
        ("h:5/b:2", ("h:5/b", "2")),
    ],
)
def test_a_colon_before_the_last_slash_is_a_port(reference: str, parts: tuple[str, str]) -> None:
    assert image.split(reference) == parts


def test_without_mmdebstrap_the_hint_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ImageBuildFailed, match="is not installed") as caught:
        base.bootstrap(None, "primer/x:1", [])
    assert caught.value.hint_text.startswith("apt-get install -y mmdebstrap")


def test_mmdebstrap_without_root_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool(tmp_path, monkeypatch, "exit 0")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ImageBuildFailed, match="needs root"):
        base.bootstrap(None, "primer/x:1", [])


def test_what_mmdebstrap_says_is_part_of_the_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool(tmp_path, monkeypatch, "echo 'I: trying' >&2; echo 'E: no such package: nope' >&2; exit 1")
    with pytest.raises(ImageBuildFailed, match="no such package: nope"):
        base.run_mmdebstrap(str(tmp_path / "out.tar"), ["nope"])


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "mmdebstrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.docker
def test_a_base_that_is_not_there_is_a_sentence(engine_url: str) -> None:
    with pytest.raises(ImageBuildFailed, match="nope:1 is not on the engine"):
        list(image.build(tag=TAG, base="nope:1", engine_url=engine_url))


@pytest.mark.docker
def test_a_second_build_does_nothing(runtime_image: str, docker_view: DockerView, engine_url: str) -> None:
    before = docker_view.client.inspect_image(runtime_image)["Id"]
    lines = list(image.build(tag=runtime_image, engine_url=engine_url))
    assert lines == [f"{runtime_image} is up to date (runtime {runtime.VERSION})"]
    assert docker_view.client.inspect_image(runtime_image)["Id"] == before


@pytest.mark.docker
def test_another_base_is_another_recipe_and_a_forced_build_is_done(
    runtime_image: str, engine_url: str, tag: str, docker_view: DockerView
) -> None:
    assert any(line.startswith("built") for line in image.build(tag=tag, base=runtime_image, engine_url=engine_url))
    assert "up to date" in next(iter(image.build(tag=tag, base=runtime_image, engine_url=engine_url)))
    lines = list(image.build(tag=tag, base=runtime_image, force=True, engine_url=engine_url))
    assert lines[-1].startswith(f"built {tag}")
    assert image.runtime_digest(tag, engine_url=engine_url) == runtime.digest()
    assert image.runtime_digest("nope:1", engine_url=engine_url) is None


@pytest.mark.docker
def test_a_base_without_python_is_named_with_what_it_lacks(
    runtime_image: str, engine_url: str, docker_view: DockerView, tag: str
) -> None:
    broken = derive(docker_view, runtime_image, "rm -rf /usr/lib/python3*/json /usr/bin/bash")
    try:
        with pytest.raises(ImageBuildFailed):
            list(image.build(tag=tag, base=broken, engine_url=engine_url))
        assert docker_view.client.images(tag) == []
    finally:
        docker_view.client.remove_image(broken, force=True)


@pytest.mark.docker
def test_a_replaced_image_that_a_sandbox_still_used_goes_later_and_what_others_built_on_it_stays(
    runtime_image: str, engine_url: str, tag: str, docker_view: DockerView
) -> None:
    client, key = docker_view.client, INSTANCE.replace("-", "_").upper()

    def built(number: int) -> str:
        """Builds on a base that differs each time, so that the tag names another image each time."""
        base = based(docker_view, runtime_image, f"{key}={number}")
        try:
            list(image.build(tag=tag, base=base, engine_url=engine_url))
        finally:
            client.remove_image(base, force=True)
        return str(client.inspect_image(tag)["Id"])

    first = built(1)
    holder = client.create_container_from_config({"Image": first, "Cmd": ["true"]})["Id"]
    theirs = ""
    try:
        theirs = str(client.commit(holder)["Id"])  # nameless, and with every label of ours
        assert built(2) != first
        assert {first, theirs} <= nameless(docker_view)
        client.remove_container(holder)
        assert not {first, theirs} & set(image.drop_replaced(tag, engine_url=engine_url))  # what they built needs it
        client.remove_image(theirs, noprune=True)  # else the engine itself removes what it was built on
        assert first in image.drop_replaced(tag, engine_url=engine_url)
        assert first not in nameless(docker_view)
    finally:
        for one in client.containers(all=True, filters={"ancestor": first}):
            client.remove_container(one["Id"], force=True)
        for one in {first, theirs} & nameless(docker_view):
            client.remove_image(one, force=True)


def nameless(view: DockerView) -> set[str]:
    return {
        str(one["Id"]) for one in view.client.images(all=True) if not set(one["RepoTags"] or []) - {"<none>:<none>"}
    }


def based(view: DockerView, reference: str, env: str) -> str:
    """The image with one more variable under a name of its own."""
    body = {"Image": reference, "Cmd": ["true"], "Env": [env]}
    container = view.client.create_container_from_config(body)["Id"]
    name = f"primer-test/based-{env.lower().replace('=', '-').replace('_', '-')}"
    view.client.commit(container, repository=name, tag="1")
    view.client.remove_container(container)
    return f"{name}:1"


def derive(view: DockerView, reference: str, command: str) -> str:
    body: dict[str, Any] = {
        "Image": reference,
        "Cmd": ["sh", "-c", command],
        "User": "0:0",
        "HostConfig": {"NetworkMode": "none"},
    }
    container = view.client.create_container_from_config(body)["Id"]
    view.client.start(container)
    view.client.wait(container)
    made = str(view.client.commit(container, repository=f"primer-test/broken-{INSTANCE}", tag="1")["Id"])
    view.client.remove_container(container, force=True)
    return made


@pytest.mark.docker
def test_the_image_has_what_programs_need_and_no_file_that_raises_privileges(
    runtime_image: str, docker_view: DockerView
) -> None:
    modules = "import json, ctypes, ssl, sqlite3, venv, decimal, unicodedata, bz2, lzma; print(6 * 7)"
    assert run(docker_view, runtime_image, "python", "-c", modules) == "42"
    tools = "for t in python3 bash ls grep sed awk find xargs ps lscpu perl; do command -v $t >/dev/null || echo no $t; done"
    assert run(docker_view, runtime_image, "sh", "-c", tools) == ""
    assert run(docker_view, runtime_image, "sh", "-c", "find / -xdev -perm /6000 2>/dev/null; true") == ""
    assert run(docker_view, runtime_image, "sh", "-c", "command -v cc gcc g++ ld as; true") == ""
    assert (
        run(docker_view, runtime_image, "sh", "-c", "id -u; pwd; stat -c '%u:%g %a' .")
        == "1000\n/workspace\n1000:1000 750"
    )
    assert run(docker_view, runtime_image, "stat", "-c", "%u:%g %a", "/opt/primer/runtime.pyz") == "0:0 644"


@pytest.mark.docker
def test_the_image_is_labelled_with_the_runtime_inside(runtime_image: str, docker_view: DockerView) -> None:
    assert docker_view.client.inspect_image(runtime_image)["Config"]["Labels"]["primer.runtime"] == runtime.digest()
    inside = run(docker_view, runtime_image, "sha256sum", "/opt/primer/runtime.pyz").split()[0]
    assert inside == runtime.digest()
