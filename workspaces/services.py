"""What happens to providers, templates and workspaces. Pages, API and server commands are thin callers."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from accounts.audit import Actor, audit_record
from accounts.models import AuditEntry
from accounts.quotas import refuse_more
from primer_site import vault
from primer_site.crashpoints import reach
from primer_site.errors import Conflict, FieldError, InUse
from primer_site.resource import SluggedResource
from primer_site.words import kind_words
from workspaces import audited, bells
from workspaces.models import (
    AT_REST,
    Desired,
    Exec,
    Health,
    Phase,
    TemplateVersion,
    Workspace,
    WorkspaceProvider,
    WorkspaceTemplate,
    advance,
)
from workspaces.querysets import foreign
from workspaces.references import provider_named, refuse_mismatched, refuse_other_kind, template_named
from workspaces.secret_fields import endpoint_of, split_config, split_env
from workspaces.snapshot import channel, snapshot

LISTED_USERS = 10  # of an object that is in use
TOUCH_EVERY = timedelta(seconds=5)
OPENING_COUNTS_ONCE = timedelta(minutes=10)

# -- providers


@transaction.atomic
def provider_create(*, by: Actor, data: dict[str, Any]) -> WorkspaceProvider:
    """Makes a provider from validated data (`slug provider config description labels`); `Conflict` for a taken id."""
    config, secrets = split_config(data["provider"], data["config"], {}, {})
    row = WorkspaceProvider(**(data | {"config": config, "secrets": vault.seal(secrets)}))
    _insert(row)
    audit_record(by, "workspace_provider.create", kind=row.KIND, object_id=row.slug, after=audited.provider_shown(row))
    return row


@transaction.atomic
def provider_update(*, by: Actor, row: WorkspaceProvider, data: dict[str, Any]) -> WorkspaceProvider:
    """Replaces the given fields. Kind and engine stay while workspaces live there, the kind also while templates have it (`InUse`)."""
    before, values = audited.provider_shown(row), dict(data)
    kind = values.get("provider", row.provider)
    if "config" in values or kind != row.provider:
        _refuse_move(row, kind, values.get("config", row.config))
    if "config" in values:
        old = vault.unseal(row.secrets)
        values["config"], secrets = split_config(kind, values["config"], row.config, old)
        if secrets != old:  # sealing the same twice gives two texts: unchanged secrets must not look like a change
            values["secrets"] = vault.seal(secrets)
    if changed := row.write_spec(values):
        if {"provider", "config", "secrets"} & set(changed):
            _forget_check(row)
        audit_record(
            by, "workspace_provider.update", kind=row.KIND, object_id=row.slug,
            before=before, after=audited.provider_shown(row),
        )  # fmt: skip
    return row


@transaction.atomic
def provider_delete(*, by: Actor, row: WorkspaceProvider) -> None:
    """Deletes a provider that nothing uses; `InUse` lists the users."""
    _refuse_in_use(row, _live_of(row))
    _refuse_templates(row, list(row.templates.live().values_list("slug", flat=True)[: LISTED_USERS + 1]))
    _mark_deleted(by, row, audited.provider_shown(row))


def _refuse_move(row: WorkspaceProvider, kind: str, config: dict[str, Any]) -> None:
    """Its workspaces live on one engine: at another they would be lost, and what they left here would be nobody's."""
    if (kind, endpoint_of(config)) != (row.provider, endpoint_of(row.config)):
        hint = "Delete those workspaces first, or define another provider for the other engine."
        _refuse_in_use(row, _live_of(row), hint)
    if kind != row.provider:
        _refuse_templates(row, [one.slug for one in row.templates.live() if one.backend.get("kind") != kind])


def _refuse_templates(row: WorkspaceProvider, slugs: list[str]) -> None:
    if slugs:
        more = " and more" if len(slugs) > LISTED_USERS else ""
        names = ", ".join(slugs[:LISTED_USERS])
        raise InUse(f"Provider {row.slug} is used by templates: {names}{more}.", hint="Delete those templates first.")


def _forget_check(row: WorkspaceProvider) -> None:
    """Other settings: what was measured with the old ones says nothing."""
    row.health, row.checked_at, row.reasons, row.engine, row.enforces = Health.UNKNOWN, None, [], {}, {}
    row.save(update_fields=["health", "checked_at", "reasons", "engine", "enforces"])


def provider_store_check(*, row: WorkspaceProvider, check: Any) -> WorkspaceProvider:
    """Keeps what a measurement of the engine said, unless the provider's settings changed meanwhile."""
    values = {
        "health": check.health, "reasons": list(check.reasons), "engine": check.engine, "enforces": check.enforces,
        "checked_at": timezone.now(), "state_rev": F("state_rev") + 1,
    }  # fmt: skip
    WorkspaceProvider.objects.filter(pk=row.pk, spec_rev=row.spec_rev).update(**values)
    row.refresh_from_db()
    return row


# -- templates


@transaction.atomic
def template_create(*, by: Actor, data: dict[str, Any]) -> WorkspaceTemplate:
    """Makes a template from validated data (`provider` is the row); `Conflict` for a taken id, `Invalid` when the provider
    went or became another kind since it was looked up."""
    provider = _fitting(data["provider"], data["backend"])
    env, secrets = split_env(data.get("env", {}), {})
    row = WorkspaceTemplate(**(data | {"provider": provider, "env": env, "secrets": vault.seal(secrets)}))
    _insert(row)
    _keep_version(by, row)
    audit_record(by, "workspace_template.create", kind=row.KIND, object_id=row.slug, after=audited.template_shown(row))
    return row


@transaction.atomic
def template_update(*, by: Actor, row: WorkspaceTemplate, data: dict[str, Any]) -> WorkspaceTemplate:
    """Replaces the given fields. Workspaces made before keep their settings."""
    before, values = audited.template_shown(row), dict(data)
    provider = _fitting(values.get("provider", row.provider), values.get("backend", row.backend))
    if "provider" in values:
        values["provider"] = provider
    if "env" in values:
        old = vault.unseal(row.secrets)
        values["env"], secrets = split_env(values["env"], old)
        if secrets != old:
            values["secrets"] = vault.seal(secrets)
    if row.write_spec(values):
        _keep_version(by, row)
        audit_record(
            by, "workspace_template.update", kind=row.KIND, object_id=row.slug,
            before=before, after=audited.template_shown(row),
        )  # fmt: skip
    return row


@transaction.atomic
def template_delete(*, by: Actor, row: WorkspaceTemplate) -> None:
    """Deletes a template without live workspaces; `InUse` lists them."""
    _refuse_in_use(row, row.workspaces.live())
    _mark_deleted(by, row, audited.template_shown(row))


def _fitting(provider: WorkspaceProvider, backend: dict[str, Any]) -> WorkspaceProvider:
    """The provider as it is now, under the write lock; `Invalid` when it is gone or of another kind."""
    found = provider_named(provider.slug)
    refuse_other_kind(backend, found)
    return found


def _keep_version(by: Actor, row: WorkspaceTemplate) -> None:
    TemplateVersion.objects.create(
        template=row, number=row.spec_rev, spec=audited.template_version(row), by_name=by.user.username
    )


# -- both


def _insert(row: SluggedResource) -> None:
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        raise Conflict(
            f"There is a {row.KIND.replace('_', ' ')} {row.slug} already.", errors=[FieldError("id", "is taken")]
        ) from None


def _mark_deleted(by: Actor, row: SluggedResource, before: dict[str, Any]) -> None:
    row.deleted_at = timezone.now()
    row.save(update_fields=["deleted_at"])
    audit_record(by, f"{row.KIND}.delete", kind=row.KIND, object_id=row.slug, before=before)


def _live_of(row: WorkspaceProvider) -> QuerySet[Workspace]:
    return row.workspaces.live()


def _refuse_in_use(
    row: SluggedResource, users: QuerySet[Workspace], hint: str = "Delete those workspaces first."
) -> None:
    slugs = list(users.values_list("slug", flat=True)[: LISTED_USERS + 1])
    if slugs:
        more = " and more" if len(slugs) > LISTED_USERS else ""
        raise InUse(
            f"{kind_words(row.KIND)} {row.slug} is used by {', '.join(slugs[:LISTED_USERS])}{more}.",
            hint=hint,
        )


# -- workspaces


@transaction.atomic
def workspace_create(
    *,
    by: Actor,
    template: WorkspaceTemplate,
    name: str = "",
    labels: dict[str, str] | None = None,
    env: dict[str, Any] | None = None,
    ttl_s: int | None = None,
) -> Workspace:
    """Stores the wish for a workspace, `pending`; the reconciler makes the sandbox. `env` is added to the template's.

    `Invalid` when the template went since it was looked up, `Conflict` when its provider is of another kind.
    """
    template = template_named(template.slug)
    refuse_mismatched(template)
    refuse_more(
        by.user, Workspace.objects.live(), what="workspaces", setting="PRIMER_MAX_WORKSPACES",
        hint="Delete one first: primectl delete workspace WS",
    )  # fmt: skip
    own, own_secrets = split_env(env or {}, {})
    secrets = {key: text for key, text in vault.unseal(template.secrets).items() if key not in own} | own_secrets
    now = timezone.now()
    lives = [seconds for seconds in (ttl_s, template.max_age_s) if seconds]
    row = Workspace(
        name=name, labels=labels or {}, owner=by.user, template=template, provider=template.provider,
        spec=snapshot(template), env=template.env | own, secrets=vault.seal(secrets),
        phases=[{"phase": Phase.PENDING.value, "at": now.isoformat(), "reason": ""}],
        channel=channel(template.provider.config.get("reachability")),
        expires_at=now + timedelta(seconds=min(lives)) if lives else None,
        created_at=now, updated_at=now, phase_since=now, last_activity_at=now,
    )  # fmt: skip
    row.save(force_insert=True)
    after = audited.workspace_made(row, own, ttl_s)
    audit_record(by, "workspace.create", kind=row.KIND, object_id=row.slug, after=after)

    def made() -> None:
        reach("after-row")
        bells.wake(row.pk)

    transaction.on_commit(made, robust=True)
    return row


@transaction.atomic
def workspace_update(*, by: Actor, row: Workspace, data: dict[str, Any]) -> Workspace:
    """Changes name and labels; everything else was fixed at creation."""
    before = {"name": row.name, "labels": row.labels}
    if row.write_spec({key: data[key] for key in ("name", "labels") if key in data}):
        after = {"name": row.name, "labels": row.labels}
        audit_record(by, "workspace.update", kind=row.KIND, object_id=row.slug, before=before, after=after)
    return row


@transaction.atomic
def workspace_start(*, by: Actor | None, row: Workspace) -> Workspace:
    """Wishes for a running sandbox over the files that are there. Already running or coming up is success."""
    row = Workspace.objects.get(pk=row.pk)
    if row.phase == Phase.DELETING:
        raise Conflict(f"Workspace {row.slug} is being deleted.")
    if row.phase == Phase.LOST and row.phase_reason == "data_lost":
        raise Conflict(f"Workspace {row.slug} cannot start: its files are gone.", hint="Create a new workspace.")
    before = audited.wish_shown(row)
    if row.phase in AT_REST:
        begin_again(row)
    elif row.desired != Desired.RUNNING:
        _wish(row, Desired.RUNNING)  # a stop is under way: it is finished, and then the workspace starts again
    if (after := audited.wish_shown(row)) != before:
        audit_record(by, "workspace.start", kind=row.KIND, object_id=row.slug, before=before, after=after)
    transaction.on_commit(lambda: bells.wake(row.pk), robust=True)
    return row


def begin_again(row: Workspace) -> None:
    """From rest to `pending`, as a fresh container: the one before may be half there, and its channel has another secret."""
    advance(
        row, to=Phase.PENDING, desired=Desired.RUNNING, generation=row.generation + 1, boot_lines=[],
        last_activity_at=timezone.now(),
    )  # fmt: skip


def workspace_wish_running(workspace_pk: int) -> None:
    """An exec or a session needs a stopped workspace: starts it."""
    row = Workspace.objects.live().filter(pk=workspace_pk, phase=Phase.STOPPED).first()
    if row is not None:
        workspace_start(by=None, row=row)


@transaction.atomic
def workspace_stop(*, by: Actor | None, row: Workspace, reason: str = "") -> Workspace:
    """Wishes for a stopped sandbox, files kept. Already stopped, failed or lost is success."""
    row = Workspace.objects.get(pk=row.pk)
    if row.phase == Phase.DELETING:
        raise Conflict(f"Workspace {row.slug} is being deleted.")
    if row.phase not in AT_REST and row.desired != Desired.STOPPED:
        before = audited.wish_shown(row)
        _wish(row, Desired.STOPPED)
        after = audited.wish_shown(row) | {"reason": reason or "asked"}
        audit_record(by, "workspace.stop", kind=row.KIND, object_id=row.slug, before=before, after=after)
    transaction.on_commit(lambda: bells.wake(row.pk), robust=True)
    return row


@transaction.atomic
def workspace_delete(*, by: Actor | None, row: Workspace, reason: str = "") -> None:
    """Wishes the workspace gone, in whatever phase it is; again is success. The reconciler removes container and files."""
    row = Workspace.objects.get(pk=row.pk)
    if row.deleted_at is None and row.phase != Phase.DELETING:
        before, after = audited.workspace_gone(row), {"reason": reason or "asked"}
        advance(row, to=Phase.DELETING, desired=Desired.GONE, phase_reason=reason)
        audit_record(by, "workspace.delete", kind=row.KIND, object_id=row.slug, before=before, after=after)

    def wished() -> None:
        reach("delete-row")
        bells.wake(row.pk)

    transaction.on_commit(wished, robust=True)


def touch_is_due(last_activity_at: datetime) -> bool:
    """`last_activity_at` is exact to TOUCH_EVERY, so that a burst of reads is one write."""
    return timezone.now() - last_activity_at > TOUCH_EVERY


def workspace_touch(workspace_pk: int, last_activity_at: datetime) -> None:
    """Somebody uses the workspace: it is not idle."""
    if touch_is_due(last_activity_at):
        Workspace.objects.filter(pk=workspace_pk).update(last_activity_at=timezone.now())


def _wish(row: Workspace, desired: Desired) -> None:
    Workspace.objects.filter(pk=row.pk).update(desired=desired, state_rev=F("state_rev") + 1)
    row.refresh_from_db()


def audit_opening(by: Actor, obj: Workspace | Exec) -> None:
    """An admin who opens somebody else's object leaves a line, once in ten minutes for each object."""
    if not foreign(by.user, obj):
        return
    seen = {"actor": by.user, "action": f"{obj.KIND}.open", "kind": obj.KIND, "object_id": obj.slug}
    if not AuditEntry.objects.filter(**seen, at__gt=timezone.now() - OPENING_COUNTS_ONCE).exists():
        audit_record(by, f"{obj.KIND}.open", kind=obj.KIND, object_id=obj.slug)
