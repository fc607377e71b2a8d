"""What a body names: the live row behind an id, and whether template, provider and engine fit. Rows are looked up when a
body is read and again inside the transaction that writes: an engine is asked in between, and they may go meanwhile."""

from __future__ import annotations

from typing import Any

from primer_site.errors import Conflict, FieldError, Invalid
from workspaces.models import Require, WorkspaceProvider, WorkspaceTemplate


def provider_named(slug: str) -> WorkspaceProvider:
    """The live provider of that id as it is now; `Invalid` naming `provider_id` when there is none."""
    row: WorkspaceProvider | None = WorkspaceProvider.objects.live().filter(slug=slug).first()
    if row is None:
        raise _invalid("provider_id", f"there is no workspace provider {slug}")
    return row


def template_named(slug: str) -> WorkspaceTemplate:
    """The live template of that id as it is now, with its provider; `Invalid` naming `template_id` when there is none."""
    rows = WorkspaceTemplate.objects.live().select_related("provider")
    row: WorkspaceTemplate | None = rows.filter(slug=slug).first()
    if row is None:
        raise _invalid("template_id", f"there is no workspace template {slug}")
    return row


def refuse_other_kind(backend: dict[str, Any], provider: WorkspaceProvider) -> None:
    """Raises `Invalid` for a template's backend that its provider does not run."""
    if backend["kind"] != provider.provider:
        raise _invalid("backend.kind", f"must be {provider.provider}, the kind of provider {provider.slug}")


def refuse_mismatched(template: WorkspaceTemplate) -> None:
    """Raises `Conflict` for a stored template whose provider became another kind: its programs would run elsewhere."""
    kind, provider = template.backend.get("kind"), template.provider
    if kind != provider.provider:
        raise Conflict(
            f"Template {template.slug} describes a {kind} sandbox, and its provider {provider.slug} is of the kind "
            f"{provider.provider}.",
            hint="Change the backend of the template, or use another template.",
        )


def refuse_unenforced(image: Any, require: str) -> None:
    """Raises `Invalid` when a template requires limits to hold that this engine does not enforce."""
    loose = [f"{name} ({worth})" for name, worth in image.limits.items() if worth != "enforced"]
    if require == Require.ENFORCED and loose:
        message = " ".join([f"this engine does not enforce {', '.join(loose)}.", *image.reasons.values()])
        raise Invalid(
            "The template requires what its engine does not enforce.", errors=[FieldError("require", message)]
        )


def _invalid(field: str, message: str) -> Invalid:
    return Invalid("The request is not valid.", errors=[FieldError(field, message)])
