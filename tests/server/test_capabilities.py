"""/v1/capabilities: what clients need not guess, and in step with the code that keeps it."""

from __future__ import annotations

import pytest
import yaml

from primer_site.openapi import TARGET
from sessions_app.export import RENDERERS
from sessions_app.models import EventKind
from tests.factories import Api, make_user
from workspaces.models import ENDED_BY, Phase
from workspaces.runtime import build as runtime

pytestmark = pytest.mark.django_db


def capabilities() -> dict:
    answer = Api(make_user()).get("capabilities")
    assert answer.status_code == 200, answer.content
    return dict(answer.json())


def test_it_has_every_field_that_the_schema_promises_and_no_other():
    shape = yaml.safe_load(TARGET.read_text())["components"]["schemas"]["Capabilities"]
    found = capabilities()
    assert set(found) == set(shape["properties"]) == set(shape["required"])


def test_its_words_are_those_of_the_api():
    found = capabilities()
    assert set(found["phases"]) == set(Phase.values)
    assert set(found["ended_by"]) == set(ENDED_BY)
    assert set(found["event_kinds"]) == set(EventKind.values)
    assert found["roles"] == ["viewer", "member", "admin"]
    assert found["scopes"] == ["read", "write", "admin"]
    assert "workspace__exec" in found["tools"]
    assert found["transcript_formats"] == list(RENDERERS)
    assert found["runtime"]["digest"] == runtime.digest()


@pytest.mark.parametrize(("allowed", "shown"), [(True, True), (False, False)])
def test_the_local_kind_is_shown_only_where_it_may_be_used(settings, allowed, shown):
    settings.PRIMER_ALLOW_LOCAL = allowed
    assert ("local" in capabilities()["workspace_providers"]) is shown


def test_its_limits_are_those_of_the_settings(settings):
    settings.PRIMER_MAX_BODY_BYTES, settings.PRIMER_KEEP_DAYS = 12345, 7
    limits = capabilities()["limits"]
    assert (limits["json_bytes"], limits["keep_days"]) == (12345, 7)
    assert all(isinstance(value, int) and value >= 0 for value in limits.values())
