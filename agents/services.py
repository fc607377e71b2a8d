"""What happens to models and agents. Functions `<entity>_<verb>`, keyword-only, each in one transaction with its audit line."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from accounts.audit import Actor, audit_record
from accounts.models import User
from agents.llm import key_of, llm_class, make_llm
from agents.llm.address import AddressRefused, place_of, resolve
from agents.llm.base import LLM, LLMConfig, LLMRequest, LLMUnavailable, Reply
from agents.messages import Usage, UserMessage
from agents.models import Agent, Health, LLMProvider
from agents.serializers import agent_shown, llm_named, refuse_thinking
from primer_site import vault
from primer_site.errors import Conflict, FieldError, InUse, Invalid
from primer_site.resource import SluggedResource
from workspaces.secret_fields import masked_config, split_config

LISTED_USERS = 10
TEST_S = 30.0
RESOLVE_S = 5.0

# -- LLM providers


@transaction.atomic
def llm_provider_create(*, by: Actor, data: dict[str, Any]) -> LLMProvider:
    """Makes a provider from validated data (`slug provider config description labels`); `Conflict` for a taken id."""
    config, secrets = split_config(data["provider"], data["config"], {}, {})
    row = LLMProvider(**(data | {"config": config, "secrets": vault.seal(secrets)}))
    _insert(row)
    audit_record(by, "llm_provider.create", kind=row.KIND, object_id=row.slug, after=_shown(row))
    return row


@transaction.atomic
def llm_provider_update(*, by: Actor, row: LLMProvider, data: dict[str, Any]) -> LLMProvider:
    """Replaces the given fields; what was measured of the old settings is forgotten. `InUse` for a kind that lacks a setting
    of its agents.

    A key stays while it is left out and the endpoint is the same; one of another kind or address never gets it.
    """
    before, values = _shown(row), dict(data)
    kind = values.get("provider", row.provider)
    _refuse_thinkers(row, kind)
    if "config" in values:
        values["config"], secrets = _settings(row, kind, values["config"])
        if secrets != vault.unseal(
            row.secrets
        ):  # sealed twice it is two texts: an unchanged key must not look like a change
            values["secrets"] = vault.seal(secrets)
    if changed := row.write_spec(values):
        if {"provider", "config", "secrets"} & set(changed):
            _store_health(row, Health.UNKNOWN, [])
        audit_record(
            by, "llm_provider.update", kind=row.KIND, object_id=row.slug, before=before, after=_shown(row)
        )  # fmt: skip
    return row


def _settings(row: LLMProvider | None, kind: str, config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Config and secrets as they would be stored over `row`: its key goes with its own kind and endpoint, and with no other."""
    old = vault.unseal(row.secrets) if row is not None and kind == row.provider else {}
    found, secrets = split_config(kind, config, row.config if row is not None else {}, old)
    if found.get("api_key_env"):
        secrets.pop("api_key", None)  # one source of the key: the later wish
    return found, secrets


def llm_provider_try(*, row: LLMProvider | None, kind: str, config: dict[str, Any]) -> LLM:
    """The driver of settings that are not stored, over those of `row` where they change one; `LLMConfig` when it cannot be."""
    found, secrets = _settings(row, kind, config)
    vault.remember(str(secrets.get("api_key") or ""))
    return make_llm(kind, found, secrets, row.slug if row is not None else "unsaved")


def _refuse_thinkers(row: LLMProvider, kind: str) -> None:
    if kind == row.provider or llm_class(kind).takes_thinking:
        return
    slugs = [agent.slug for agent in Agent.objects.live().filter(provider=row) if (agent.thinking or "off") != "off"]
    if slugs:
        raise InUse(
            f"Models of the kind {kind} have no thinking, and agents ask LLM provider {row.slug} for it: "
            f"{', '.join(slugs[:LISTED_USERS])}{' and more' if len(slugs) > LISTED_USERS else ''}.",
            hint="Set their thinking to off first.",
        )


@transaction.atomic
def llm_provider_delete(*, by: Actor, row: LLMProvider) -> None:
    """Deletes a provider that no live agent names; `InUse` lists them."""
    agents = list(Agent.objects.live().filter(provider=row).values_list("slug", flat=True)[: LISTED_USERS + 1])
    if agents:
        more = " and more" if len(agents) > LISTED_USERS else ""
        names = ", ".join(agents[:LISTED_USERS])
        raise InUse(f"LLM provider {row.slug} is used by agents: {names}{more}.", hint="Delete those agents first.")
    _mark_deleted(by, row, _shown(row))


def llm_provider_open(*, slug: str) -> LLM:
    """The driver of a live provider; `LLMConfig` when it is gone or cannot be made."""
    row: LLMProvider | None = LLMProvider.objects.live().filter(slug=slug).first()
    if row is None:
        raise LLMConfig(f"The LLM provider {slug} does not exist any more.", hint="Create it, or change the agent.")
    try:
        return make_llm(row.provider, row.config, vault.unseal(row.secrets), slug)
    except KeyError:
        raise LLMConfig(f"This server has no driver for {row.provider}.") from None


def llm_provider_key(row: LLMProvider) -> str:
    """The key in use, to be kept out of every text; "" when there is none."""
    try:
        key = key_of(row.config, vault.unseal(row.secrets))
    except LLMConfig:
        return ""
    vault.remember(key)
    return key


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
    config = masked_config(row.provider, row.config, vault.unseal(row.secrets))
    return {"provider": row.provider, "config": config, "description": row.description, "labels": row.labels}


async def refuse_address(url: str) -> None:
    """Raises `Invalid` when a base_url leads to an address that this server does not talk to. A name that leads nowhere
    now may do so later."""
    try:
        async with asyncio.timeout(RESOLVE_S):
            await resolve(place_of(url))
    except AddressRefused as exc:
        message = f"leads to a private address: {exc.hint_text[:1].lower()}{exc.hint_text[1:]}"
        raise Invalid(exc.detail, errors=[FieldError("config.base_url", message)], hint=exc.hint_text) from None
    except (LLMUnavailable, TimeoutError):
        return


async def ask_once(llm: LLM, model: str) -> Reply:
    """One tiny question, to see whether the model answers; raises the driver's error when it does not."""
    request = LLMRequest(model=model, system="", messages=(UserMessage("Say ok."),), max_output_tokens=16)
    try:
        async with asyncio.timeout(TEST_S), aclosing(llm.stream(request)) as stream:
            async for event in stream:
                if isinstance(event, Reply):
                    return event
        raise LLMUnavailable("The model's stream ended in the middle of a reply.")
    except TimeoutError:
        hint = "A model that has to be loaded first may need longer: test it again in a minute."
        raise LLMUnavailable(f"The model did not answer within {TEST_S:g} s.", hint=hint) from None
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
    row = Agent(**_fitting(data, data.get("thinking")), owner=by.user)
    _insert(row)
    audit_record(by, "agent.create", kind=row.KIND, object_id=row.slug, after=agent_shown(row))
    return row


@transaction.atomic
def agent_update(*, by: Actor, row: Agent, data: dict[str, Any]) -> Agent:
    """Replaces the given fields. Sessions that exist keep their snapshot."""
    before = agent_shown(row)
    if row.write_spec(_fitting(data, data.get("thinking", row.thinking))):
        audit_record(by, "agent.update", kind=row.KIND, object_id=row.slug, before=before, after=agent_shown(row))
    return row


def _fitting(data: dict[str, Any], thinking: Any) -> dict[str, Any]:
    """The data with its provider looked up under the write lock; `Invalid` when it was deleted since the body was read, or
    became of a kind that does not think."""
    if "provider" not in data:
        return data
    provider = llm_named(data["provider"].slug)
    refuse_thinking(thinking, provider.provider)
    return data | {"provider": provider}


@transaction.atomic
def agent_delete(*, by: Actor, row: Agent) -> None:
    """Deletes an agent without queued or running sessions; `InUse` lists them."""
    active = row.sessions.active()
    sessions = list(active.values_list("slug", flat=True)[:LISTED_USERS])
    if sessions:
        raise InUse(f"Agent {row.slug} is used by {', '.join(sessions)}.", hint="Wait for them, or cancel them.")
    _mark_deleted(by, row, agent_shown(row))


def agent_usage(*, row: Agent, user: User) -> dict[str, Any]:
    """What the agent's sessions have used that `user` may see. The cost is None when a part of it has no price."""
    sessions, turns, calls, total = 0, 0, 0, Usage()
    cost: float | None = 0.0
    seen = row.sessions.visible_to(user).values_list("turns", "tool_calls", "usage")
    for own_turns, own_calls, used in seen.iterator(chunk_size=500):
        usage = Usage.from_dict(used)
        sessions, turns, calls, total = sessions + 1, turns + own_turns, calls + own_calls, total + usage
        if usage.total:
            cost = None if cost is None or used.get("cost") is None else cost + used["cost"]
    cost = None if cost is None or not total.total else round(cost, 9)
    return {"sessions": sessions, "turns": turns, "tool_calls": calls, "usage": {**total.to_dict(), "cost": cost}}


# -- both


def _insert(row: SluggedResource) -> None:
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        what = row.KIND.replace("_", " ")
        raise Conflict(f"There is an {what} {row.slug} already.", errors=[FieldError("id", "is taken")]) from None


def _mark_deleted(by: Actor, row: SluggedResource, before: dict[str, Any]) -> None:
    row.deleted_at = timezone.now()
    row.save(update_fields=["deleted_at"])
    audit_record(by, f"{row.KIND}.delete", kind=row.KIND, object_id=row.slug, before=before)
