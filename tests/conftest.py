"""The environment of every test: no PRIMER_* of the caller, homes of our own, and one real server for those who ask."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

# Before Django's settings are read: nothing of the caller's install, and nothing of the caller's home.
for name in [name for name in os.environ if name.startswith(("PRIMER_", "PRIMECTL_"))]:
    if name != "PRIMER_REQUIRE":
        del os.environ[name]
for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):  # a caller's key must reach no server of a test
    os.environ.pop(name, None)
SCRATCH = Path(tempfile.mkdtemp(prefix="primer-tests-"))
os.environ.update(
    HOME=str(SCRATCH / "home"),
    XDG_CONFIG_HOME=str(SCRATCH / "config"),
    XDG_DATA_HOME=str(SCRATCH / "data"),
    XDG_CACHE_HOME=str(SCRATCH / "cache"),
    PRIMER_HOME=str(SCRATCH / "primer"),
    DJANGO_SETTINGS_MODULE="primer_site.settings",
)
(SCRATCH / "home").mkdir()

import django  # noqa: E402
import pytest  # noqa: E402
from django.conf import settings  # noqa: E402

from primer_site.home import prepare  # noqa: E402

prepare()
(SCRATCH / "primer" / "static").mkdir()  # WhiteNoise warns when there is none
django.setup()
# Slow on purpose in a product, and only slow in a test: the real servers of the e2e tests keep the real one.
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

from tests.live import LiveServer  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    # The workers of xdist inherit the environment of their parent, and pytest-django would make them read the settings
    # with the parent's home, before they come to this file.
    if getattr(config.option, "numprocesses", None):
        del os.environ["DJANGO_SETTINGS_MODULE"]


def pytest_unconfigure() -> None:
    shutil.rmtree(SCRATCH, ignore_errors=True)


def unusable(service: str, why: str) -> NoReturn:
    """Skips a test whose service is missing, or fails it where the build promises that service (PRIMER_REQUIRE)."""
    if service in os.environ.get("PRIMER_REQUIRE", "").split(","):
        pytest.fail(f"{service} is required here but not usable: {why}")
    pytest.skip(f"{service} is not usable: {why}")


@pytest.fixture(scope="session")
def docker_engine() -> str:
    """The socket of a container engine that answers; without one the test is skipped, or fails where docker is promised."""
    from workspaces.providers.base import ProviderError
    from workspaces.providers.engine import open_local

    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        open_local(host, timeout_s=10).close()
    except ProviderError as exc:
        unusable("docker", exc.detail)
    return host.removeprefix("unix://")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One real `primer up` for the whole run (of one xdist worker): `url`, `token` of an admin, `stop`, `kill9`, `restart`.

    A test that stops it starts it again; one that needs another state makes its own by `own_server`.
    """
    live = LiveServer(tmp_path_factory.mktemp("server"))
    live.start()
    yield live
    live.destroy()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server of this test alone, not yet started."""
    live = LiveServer(tmp_path / "own-server")
    yield live
    live.destroy()
