"""An image with packages of the distribution, and the runtime volumes of earlier versions."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import unusable
from tests.engine import INSTANCE, DockerView
from tests.providers.test_image import run
from workspaces import image
from workspaces.image.base import ImageBuildFailed
from workspaces.providers import manifests
from workspaces.providers.container import ContainerProvider
from workspaces.providers.images import LABEL_MADE_BY
from workspaces.runtime import build as runtime

pytestmark = pytest.mark.docker
TAG = f"primer-test/packages-{INSTANCE}:1"


@pytest.fixture
def engine_url(docker_view: DockerView) -> Iterator[str]:
    before = {tag for one in docker_view.client.images() for tag in one["RepoTags"] or []}
    yield f"unix://{docker_view.socket_path}"
    after = {tag for one in docker_view.client.images() for tag in one["RepoTags"] or []}
    for tag in sorted(after - before):
        if tag == TAG or tag.startswith("primer/workspace-base:"):
            docker_view.client.remove_image(tag, force=True)


@pytest.mark.slow
def test_a_package_of_the_distribution_is_in_the_image_and_the_rest_still_holds(
    engine_url: str, docker_view: DockerView
) -> None:
    if shutil.which("mmdebstrap") is None:
        unusable("mmdebstrap", "no image can be made without a registry")
    try:
        lines = list(image.build(tag=TAG, packages=["tree"], engine_url=engine_url))
    except ImageBuildFailed as exc:
        unusable("a Debian mirror", exc.detail)
    assert lines[-1].startswith(f"built {TAG} (")
    assert "verified: python, tools, no setuid file, /workspace belongs to 1000" in lines
    assert "tree v" in run(docker_view, TAG, "tree", "--version")
    assert run(docker_view, TAG, "sh", "-c", "id -u; python -c 'print(6 * 7)'") == "1000\n42"
    assert image.runtime_digest(TAG, engine_url=engine_url) == runtime.digest()
    assert "up to date" in next(iter(image.build(tag=TAG, packages=["tree"], engine_url=engine_url)))


@pytest.mark.slow
def test_a_package_that_does_not_exist_is_named_and_leaves_no_image(engine_url: str, docker_view: DockerView) -> None:
    if shutil.which("mmdebstrap") is None:
        unusable("mmdebstrap", "no image can be made without a registry")
    with pytest.raises(ImageBuildFailed) as caught:
        list(image.build(tag=TAG, packages=["no-such-package-at-all"], engine_url=engine_url))
    assert "mmdebstrap could not make the base image" in caught.value.detail
    assert "package names exist" in caught.value.hint_text
    assert docker_view.client.images(TAG) == []


def test_packages_on_a_base_without_a_package_manager_are_a_sentence(
    runtime_image: str, engine_url: str, docker_view: DockerView
) -> None:
    with pytest.raises(ImageBuildFailed) as caught:
        list(image.build(tag=TAG, base=runtime_image, packages=["tree"], engine_url=engine_url))
    assert caught.value.detail.startswith("The image build stopped:")
    assert caught.value.log
    assert docker_view.client.images(TAG) == []


# -- runtime volumes


@pytest.fixture
def made_by() -> str:
    """An install of this test alone."""
    return f"test-{secrets.token_hex(6)}"


def volume(view: DockerView, made_by: str, name: str = "") -> str:
    name = name or f"primer-runtime-{secrets.token_hex(8)}"
    view.client.create_volume(name, labels={LABEL_MADE_BY: made_by} if made_by else {})
    return name


def there(view: DockerView, *names: str) -> set[str]:
    return {one["Name"] for one in view.client.volumes()["Volumes"] or []} & set(names)


async def test_only_what_this_install_made_and_nothing_uses_is_pruned(docker_view: DockerView, made_by: str) -> None:
    provider = ContainerProvider(config(docker_view), {}, instance_id=made_by)
    old, foreign, nobodys, used = (volume(docker_view, who) for who in (made_by, "another", "", made_by))
    holder = docker_view.client.create_container_from_config(
        {"Image": some_image(docker_view), "Cmd": ["true"], "HostConfig": {"Mounts": [mount(used)]}}
    )["Id"]
    try:
        assert await provider.prune_shared() == [old]
        assert there(docker_view, old, foreign, nobodys, used) == {foreign, nobodys, used}
        assert await provider.prune_shared() == []
    finally:
        docker_view.client.remove_container(holder, force=True)
        for name in there(docker_view, old, foreign, nobodys, used):
            docker_view.client.remove_volume(name)
        await provider.close()


async def test_the_volume_of_this_version_is_kept_by_prune_and_goes_with_the_install(
    docker_view: DockerView, made_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = secrets.token_hex(32)
    monkeypatch.setattr(runtime, "digest", lambda: digest)
    provider = ContainerProvider(config(docker_view), {}, instance_id=made_by)
    current = volume(docker_view, made_by, manifests.runtime_volume(digest))
    try:
        assert await provider.prune_shared() == []
        assert there(docker_view, current) == {current}
        assert await provider.remove_shared() == ["volume"]
        assert there(docker_view, current) == set()
    finally:
        await provider.close()


def config(view: DockerView) -> dict[str, Any]:
    return {"connection": {"kind": "socket", "socket_path": view.socket_path}}


def mount(name: str) -> dict[str, Any]:
    return {"Type": "volume", "Source": name, "Target": "/v"}


def some_image(view: DockerView) -> str:
    return str(view.client.images()[0]["Id"])
