"""What is on an engine and belongs to no workspace: the sweep removes it, says so, and what it cannot remove is shown."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.models import AuditEntry
from primer_site import loop
from tests.console.site import browser, no_manifest
from tests.factories import make_admin, make_provider, make_user, make_workspace
from workspaces import engines, sweep, unowned
from workspaces.providers.base import EngineUnavailable, ProviderError, Ref

__all__ = ["no_manifest"]
pytestmark = pytest.mark.django_db(transaction=True)
STUCK, STRAY = "ws-00000000000000aa", "ws-00000000000000bb"


class Engine:
    """Holds some sandboxes; `stuck` ones cannot be removed, and an engine that is `down` answers nothing."""

    def __init__(self, *names: str, stuck: tuple[str, ...] = (), down: bool = False) -> None:
        self.names, self.stuck, self.down = list(names), stuck, down
        self.asked = 0

    async def discover(self) -> list[Ref]:
        self.asked += 1
        if self.down:
            raise EngineUnavailable
        return [Ref("fake", name, 1) for name in self.names]

    async def destroy(self, ref: Ref) -> list[str]:
        if ref.workspace_id in self.stuck:
            raise ProviderError("The engine <refused> to remove it.")
        self.names.remove(ref.workspace_id)
        return ["container", "volume"]


@pytest.fixture
def provider() -> Any:
    return make_provider()


def swept(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> list[str]:
    async def engine_of(provider_pk: int) -> Engine:
        return engine

    monkeypatch.setattr(engines, "engine_of", engine_of)
    return loop.run(sweep.orphans(), 20)


def test_one_that_cannot_be_removed_keeps_none_of_the_others_and_is_said_once(
    provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = make_workspace(make_user("alice"))
    engine = Engine(STUCK, STRAY, workspace.slug, stuck=(STUCK,))
    for _ in range(3):
        swept(monkeypatch, engine)
    assert sorted(engine.names) == sorted([STUCK, workspace.slug])
    assert AuditEntry.objects.filter(action=unowned.LEFT).count() == 1
    assert AuditEntry.objects.filter(action=unowned.REMOVED).count() == 1
    told = {one["workspace_id"]: (one["removed"], one["parts"]) for one in unowned.recent(provider.slug)}
    assert told == {STUCK: (False, []), STRAY: (True, ["container", "volume"])}


def test_however_many_are_left_each_is_said_once(provider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(f"ws-{number:016x}" for number in range(unowned.LISTED + 5))
    for _ in range(3):
        swept(monkeypatch, Engine(*many, stuck=many))
    assert AuditEntry.objects.filter(action=unowned.LEFT).count() == len(many)


def test_an_overview_shows_what_is_left_first_and_asks_no_engine(
    provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(STUCK, STRAY, stuck=(STUCK,))
    swept(monkeypatch, engine)
    engine.down, asked = True, engine.asked
    page = browser(make_admin()).get("/").content.decode()
    assert page.index(STUCK) < page.index(STRAY)
    assert "could not be removed: The engine &lt;refused&gt;" in page
    assert "the sweep removed container and volume" in page
    assert f"/workspaces/providers/{provider.slug}/" in page
    on_its_page = browser(make_admin()).get(f"/workspaces/providers/{provider.slug}/").content.decode()
    assert "still there" in on_its_page
    assert "container and volume removed" in on_its_page
    assert "primer prune" in on_its_page
    assert engine.asked == asked


def test_what_was_removed_after_all_is_no_longer_said_to_be_there(
    provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(STUCK, stuck=(STUCK,))
    swept(monkeypatch, engine)
    engine.stuck = ()
    assert swept(monkeypatch, engine) == [STUCK]
    (one,) = unowned.recent(provider.slug)
    assert one["removed"]


def test_an_engine_that_is_down_leaves_the_sweep_for_later_and_says_nothing_of_strays(
    provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert swept(monkeypatch, Engine(STRAY, down=True)) == []
    assert unowned.attention() == []


def test_a_member_sees_nothing_of_it(provider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(monkeypatch, Engine(STRAY))
    client = browser(make_user("alice"))
    for path in ("/", f"/workspaces/providers/{provider.slug}/"):
        assert STRAY not in client.get(path).content.decode()


def test_the_number_of_strays_costs_an_overview_no_further_query(
    provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = browser(make_admin())
    admin.get("/")
    with CaptureQueriesContext(connection) as none:
        admin.get("/")
    swept(monkeypatch, Engine(*[f"ws-{n:016x}" for n in range(60)]))
    with CaptureQueriesContext(connection) as many:
        page = admin.get("/").content.decode()
    assert len(many) <= len(none)
    assert page.count("without a workspace") == unowned.LISTED
