"""Tokens that were made by tokens: however long the chain is, its root can be taken away with all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from accounts import services
from accounts.audit import Actor
from accounts.models import AuditEntry, Role, Scope, Token, User
from primer_site.errors import Conflict

pytestmark = pytest.mark.django_db
LEVELS = 1100  # deeper than Python calls itself


@pytest.fixture
def alice() -> User:
    return services.user_create(username="alice", role=Role.MEMBER)[0]


def chain(user: User, levels: int = LEVELS) -> Token:
    """The root; below it tokens of which each made the next one."""
    root, _ = services.token_create(user=user, name="root", scope=Scope.READ, expires_in_s=3600)
    rows, maker = [], root
    for level in range(levels):
        row = Token(digest=f"{level:0128x}", token_key=f"k{level}", user=user, name=f"c{level}", scope=Scope.READ)
        row.made_by_id = maker.uuid
        rows.append(row)
        maker = row
    Token.objects.bulk_create(rows)
    return root


def revoked(user: User) -> None:
    services.token_revoke(token=Token.objects.get(user=user, name="root"))


def reset(user: User) -> None:
    services.user_store_reset(user=user, hashed="!")


def switched_off(user: User) -> None:
    services.user_update(user=user, by=Actor(user), active=False)


def deleted(user: User) -> None:
    Token.objects.get(user=user, name="root").delete()


@pytest.mark.parametrize("end", [revoked, reset, switched_off, deleted])
def test_a_chain_of_any_length_goes_with_its_root(alice: User, end: Callable[[User], None]) -> None:
    chain(alice)
    other, _ = services.token_create(user=services.user_create(username="bob", role=Role.MEMBER)[0], name="o", scope=Scope.READ, expires_in_s=None)  # fmt: skip
    end(alice)
    assert list(Token.objects.all()) == [other]


def test_each_revoked_token_of_a_chain_leaves_its_line(alice: User) -> None:
    chain(alice)
    revoked(alice)
    lines = AuditEntry.objects.filter(action="token.revoke").order_by("pk")
    assert [line.before["name"] for line in lines if line.before] == ["root", *(f"c{n}" for n in range(LEVELS))]


def test_what_several_tokens_made_goes_once_and_no_other(alice: User) -> None:
    root = chain(alice, 3)
    aside, _ = services.token_create(user=alice, name="aside", scope=Scope.READ, expires_in_s=None)
    count, by_kind = Token.objects.filter(name__in=["root", "c1"]).delete()
    assert (count, by_kind) == (4, {"accounts.Token": 4})
    assert list(Token.objects.all()) == [aside]
    assert Token.objects.filter(pk=root.pk).delete() == (0, {})


def test_tokens_make_tokens_over_16_levels_and_no_more(alice: User) -> None:
    maker, _ = services.token_create(user=alice, name="root", scope=Scope.WRITE, expires_in_s=None)
    for level in range(services.MOST_LEVELS):
        maker, value = services.token_create(
            user=alice, name=f"c{level}", scope=Scope.WRITE, expires_in_s=None, made_by=maker
        )
    with pytest.raises(Conflict, match="at most 16 levels"):
        services.token_create(user=alice, name="over", scope=Scope.WRITE, expires_in_s=None, made_by=maker)
    answer = Client().post(
        "/v1/tokens",
        {"name": "over", "scope": "read"},
        "application/json",
        headers={"Authorization": f"Bearer {value}"},
    )
    assert (answer.status_code, Token.objects.filter(name="over").exists()) == (409, False)
