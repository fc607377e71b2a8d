"""A stream of output ends with the token it was opened with, and with its user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from accounts import services
from accounts.audit import Actor
from accounts.models import Scope, Token, User
from primer_site import loop
from tests.factories import make_admin, make_user
from workspaces import streaming

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Token:
    monkeypatch.setattr(streaming, "PERMIT_S", 0.0)
    return services.token_create(user=make_user(), name="t", scope=Scope.WRITE, expires_in_s=3600)[0]


def read(user_pk: int, token_pk: str | None, between: Callable[[], object]) -> list[int]:
    """The items of a source of four that arrive when `between` happens after the second."""
    closed: list[bool] = []

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(4):
                if number == 2:
                    await loop.write(between)
                yield number
        finally:
            closed.append(True)

    async def scenario() -> list[int]:
        return [item async for item in streaming.while_signed_in(source(), user_pk, token_pk)]

    got = loop.run(scenario(), 20)
    assert closed == [True]
    return got


def test_a_stream_of_a_live_token_arrives_whole(token: Token) -> None:
    assert read(token.user_id, token.pk, lambda: None) == [0, 1, 2, 3]


def test_a_revoked_token_ends_its_streams(token: Token) -> None:
    by = Actor(make_admin())
    assert read(token.user_id, token.pk, lambda: services.token_revoke(token=token, by=by)) == [0, 1]


@pytest.mark.parametrize("with_token", [True, False], ids=["token", "cookie"])
def test_a_deactivated_user_loses_their_streams(token: Token, with_token: bool) -> None:
    def deactivate() -> None:
        User.objects.filter(pk=token.user_id).update(is_active=False)

    assert read(token.user_id, token.pk if with_token else None, deactivate) == [0, 1]
