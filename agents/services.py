"""What happens to models and agents. Functions `<entity>_<verb>`, keyword-only, each in one transaction with its audit line."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from accounts.audit import Actor, audit_record
from agents.llm import make_llm
from agents.llm.base import LLM, LLMConfig, LLMRequest, LLMUnavailable, Reply
from agents.messages import UserMessage
from agents.models import Agent, Health, LLMProvider
from agents.serializers import agent_shown
from primer_site import vault
from primer_site.errors import Conflict, FieldError, InUse
from primer_site.resource import SluggedResource

LISTED_USERS = 10
TEST_S = 30.0

# -- LLM providers


@transaction.atomic
def llm_provider_create(*, by: Actor, data: dict[str, Any]) -> LLMProvider:
    """Makes a provider from validated data (`slug provider config description labels`); `Conflict` for a taken id."""
    row = LLMProvider(**data)
    _insert(row)
    audit_record(by, "llm_provider.create", kind=row.KIND, object_id=row.slug, after=_shown(row))
    return row


@transaction.atomic
def llm_provider_update(*, by: Actor, row: LLMProvider, data: dict[str, Any]) -> LLMProvider:
    """Replaces the given fields; what was measured of the old settings is forgotten."""
    before = _shown(row)
    if changed := row.write_spec(data):
        if {"provider", "config"} & set(changed):
            _store_health(row, Health.UNKNOWN, [])
        audit_record(
            by, "llm_provider.update", kind=row.KIND, object_id=row.slug, before=before, after=_shown(row)
        )  # fmt: skip
    return row


@transaction.atomic
def llm_provider_delete(*, by: Actor, row: LLMProvider) -> None:
    """Deletes a provider that no live agent names; `InUse` lists them."""
    agents = list(Agent.objects.live().filter(provider=row).values_list("slug", flat=True)[: LISTED_USERS + 1])
    if agents:
        more = " and more" if len(agents) > LISTED_USERS else ""
        names = ", ".join(agents[:LISTED_USERS])
        raise InUse(f"LLM provider {row.slug} is used by agents: {names}{more}.", hint="Delete those agents first.")
    _mark_deleted(by, row)


def llm_provider_open(*, slug: str) -> LLM:
    """The driver of a live provider; `LLMConfig` when it is gone or cannot be made."""
    row: LLMProvider | None = LLMProvider.objects.live().filter(slug=slug).first()
    if row is None:
        raise LLMConfig(f"The LLM provider {slug} does not exist any more.", hint="Create it, or change the agent.")
    try:
        return make_llm(row.provider, row.config, vault.unseal(row.secrets))
    except KeyError:
        raise LLMConfig(f"This server has no driver for {row.provider}.") from None


def llm_provider_store_test(*, row: LLMProvider, ok: bool, reason: str) -> None:
    """Keeps what a test said."""
    _store_health(row, Health.HEALTHY if ok else Health.UNREACHABLE, [reason] if reason else [])


def _store_health(row: LLMProvider, health: Health, reasons: list[str]) -> None:
    now = None if health == Health.UNKNOWN else timezone.now()
    LLMProvider.objects.filter(pk=row.pk).update(
        health=health, reasons=reasons, checked_at=now, state_rev=F("state_rev") + 1
    )
    row.refresh_from_db()


def _shown(row: LLMProvider) -> dict[str, Any]:
    return {"provider": row.provider, "config": row.config, "description": row.description, "labels": row.labels}


async def ask_once(llm: LLM, model: str) -> None:
    """One tiny question, to see whether the model answers; raises the driver's error when it does not."""
    request = LLMRequest(model=model, system="", messages=(UserMessage("Say ok."),), max_output_tokens=16)
    try:
        async with asyncio.timeout(TEST_S), aclosing(llm.stream(request)) as stream:
            async for event in stream:
                if isinstance(event, Reply):
                    return
        raise LLMUnavailable("The model's stream ended in the middle of a reply.")
    except TimeoutError:
        raise LLMUnavailable(f"The model did not answer within {TEST_S:g} s.") from None
    finally:
        await llm.close()


async def list_models(llm: LLM) -> list[str]:
    """Names of the models of a provider; raises the driver's error."""
    try:
        async with asyncio.timeout(TEST_S):
            return await llm.models()
    except TimeoutError:
        raise LLMUnavailable(f"The endpoint did not answer within {TEST_S:g} s.") from None
    finally:
        await llm.close()


# -- agents


@transaction.atomic
def agent_create(*, by: Actor, data: dict[str, Any]) -> Agent:
    """Makes an agent owned by `by` from validated data (`provider` is the row); `Conflict` for a taken id."""
    row = Agent(**data, owner=by.user)
    _insert(row)
    audit_record(by, "agent.create", kind=row.KIND, object_id=row.slug, after=agent_shown(row))
    return row


@transaction.atomic
def agent_update(*, by: Actor, row: Agent, data: dict[str, Any]) -> Agent:
    """Replaces the given fields. Sessions that exist keep their snapshot."""
    before = agent_shown(row)
    if row.write_spec(data):
        audit_record(by, "agent.update", kind=row.KIND, object_id=row.slug, before=before, after=agent_shown(row))
    return row


@transaction.atomic
def agent_delete(*, by: Actor, row: Agent) -> None:
    """Deletes an agent without queued or running sessions; `InUse` lists them."""
    active = row.sessions.active()
    sessions = list(active.values_list("slug", flat=True)[:LISTED_USERS])
    if sessions:
        raise InUse(f"Agent {row.slug} is used by {', '.join(sessions)}.", hint="Wait for them, or cancel them.")
    _mark_deleted(by, row)


# -- both


def _insert(row: SluggedResource) -> None:
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        what = row.KIND.replace("_", " ")
        raise Conflict(f"There is an {what} {row.slug} already.", errors=[FieldError("id", "is taken")]) from None


def _mark_deleted(by: Actor, row: SluggedResource) -> None:
    row.deleted_at = timezone.now()
    row.save(update_fields=["deleted_at"])
    audit_record(by, f"{row.KIND}.delete", kind=row.KIND, object_id=row.slug)
