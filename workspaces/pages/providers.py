"""Workspaces > Providers."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django.conf import settings
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path

from accounts.pages.editing import Item
from accounts.pages.form import Field, Option, Section, dig
from accounts.pages.resource import ResourcePages, audited
from accounts.pages.table import Column, Filter
from accounts.pages.views import page, part
from primer_site import problems
from primer_site.errors import FieldError, Invalid, PrimerError
from workspaces import unowned
from workspaces.api import ProviderViewSet
from workspaces.kinds import KUBERNETES_REFUSED, RUNTIMES_REFUSED
from workspaces.models import Health, ProviderKind, WorkspaceProvider

LOCAL_REFUSED = "isolates nothing; this server does not allow it (PRIMER_ALLOW_LOCAL=1 would)"
LIMIT_NAMES = {"cpu": "CPU", "memory": "Memory", "pids": "Processes", "disk": "Disk", "egress": "Egress"}
NO_TLS = "Without TLS whoever is on the way to {} is root there: give the certificates of the engine."
OPEN_BIND = "Ports that are published on {} are open to whoever reaches that address."


def open_to(config: Mapping[str, Any]) -> tuple[str, str]:
    """What a provider's settings expose to others: by its connection, and by the address of its ports; "" for nothing."""
    url, bind = str(dig(config, "connection.url") or ""), str(dig(config, "reachability.bind_host") or "")
    host = None
    with contextlib.suppress(ValueError):  # brackets that are no address: the serializer says so
        host = urlsplit(url).hostname if url.startswith("tcp://") else None
    tls = dig(config, "connection.tls")
    secured = isinstance(tls, Mapping) and any(tls.values())
    return (
        NO_TLS.format(host) if host and not secured and not _loopback(host) else "",
        OPEN_BIND.format(bind) if bind and not _loopback(bind) else "",
    )


def _loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def connection(warn: str) -> Field:
    return Field(
        "config.connection.kind", "Connection", "cards", default="socket",
        options=(
            Option("socket", "Socket", "a file of this host", fields=(
                Field("config.connection.socket_path", "Socket path", default="/var/run/docker.sock"),)),
            Option("tcp", "TCP", "another host, over TLS", fields=(
                Field("config.connection.url", "URL", placeholder="tcp://engine.example:2376", warn=warn),
                Field("config.connection.tls.ca", "CA certificate", "area", empty=""),
                Field("config.connection.tls.cert", "Client certificate", "area", empty=""),
                Field("config.connection.tls.key", "Client key", "secret"))),
        ),
    )  # fmt: skip


def reachability(warn: str) -> Field:
    return Field(
        "config.reachability.kind", "Reachability", "cards", default="engine",
        options=(
            Option("engine", "Engine", "through the engine: works without any network"),
            Option("host_port", "Host port", "accepted; workspaces are reached through the engine for now", fields=(
                Field("config.reachability.bind_host", "Bind host", default="127.0.0.1", warn=warn),)),
        ),
    )  # fmt: skip


RUNTIME = Field(
    "config.runtime", "Runtime", "select", default="docker",
    options=(
        Option("docker", "docker"),
        *(Option(name, name, note, disabled=True) for name, note in RUNTIMES_REFUSED.items()),
    ),
)  # fmt: skip
ROOT_PATH = Field(
    "config.root_path", "Root path", default="", placeholder="/var/lib/primer/local", warn="Code runs on this host. Nothing is isolated.",
)  # fmt: skip
KNOWN = Field("_known", "I know that code runs on this host and that nothing is isolated", "tick")


def _answers(path: str) -> bool:
    """Whether somebody takes connections at a unix socket."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as found:
        found.settimeout(0.2)
        found.connect(path)
        return True
    return False


class ProviderPages(ResourcePages):
    kind = "workspace_provider"
    viewset = ProviderViewSet
    base = "/workspaces/providers/"
    section = "Workspaces"
    title = "Providers"
    noun = "provider"
    icon = "server-stack"
    templates = "providers"
    form_template = "providers/form.html"
    empty = "Nothing can run yet. A provider is the Docker or Kubernetes that hosts sandboxes."
    empty_cli = "primectl create -f docker-provider.yaml"
    tabs = (
        ("", "Overview"),
        ("templates", "Templates"),
        ("workspaces", "Workspaces"),
        ("activity", "Activity"),
        ("yaml", "YAML"),
    )
    page_sorts: ClassVar[Mapping[str, str]] = {"provider": "provider", "health": "health", "checked_at": "checked_at"}
    columns: ClassVar[Sequence[Column]] = (
        Column("ID", "id", "id", sort="id"),
        Column("Provider", "provider", "kind", sort="provider"),
        Column("Runtime", "config.runtime", narrow=True),
        Column("Connection", "config.connection.kind", narrow=True),
        Column("Reachability", "config.reachability.kind", narrow=True),
        Column("Health", "status.health", "chip", sort="health", vocabulary="health"),
        Column("Templates", "templates", "number"),
        Column("Workspaces", "workspaces", "number"),
        Column("Checked", "status.checked_at", "time", sort="checked_at", narrow=True),
    )
    filters: ClassVar[Sequence[Filter]] = (
        Filter("provider", "Kind", "provider", tuple(ProviderKind.choices)),
        Filter("health", "Health", "health", tuple(Health.choices)),
    )

    # Where the engine of this host is: known to the package that wires this one.
    local_socket: Callable[[], str] = staticmethod(lambda: "/var/run/docker.sock")

    def starters(self) -> list[tuple[str, str]]:
        return [("Use local Docker", f"{self.base}new/?local=1")] if _answers(self.local_socket()) else []

    def start_body(self, request: HttpRequest) -> Item:
        if "local" not in request.GET:
            return {}
        connection = {"kind": "socket", "socket_path": self.local_socket()}
        return {"id": "docker", "description": "The engine of this host.", "config": {"connection": connection}}

    def sections(self, request: HttpRequest, body: Mapping[str, Any], *, editing: bool) -> list[Section]:
        no_tls, open_bind = open_to(body.get("config") or {})
        shape = (RUNTIME, connection(no_tls), reachability(open_bind))
        kinds = (
            Option("container", "Container", "Docker on this host or another", fields=shape),
            Option("kubernetes", "Kubernetes", KUBERNETES_REFUSED, disabled=True),
            Option("local", "Local", "directories of this host; isolates nothing" if settings.PRIMER_ALLOW_LOCAL else LOCAL_REFUSED,
                   disabled=not settings.PRIMER_ALLOW_LOCAL, fields=(ROOT_PATH, KNOWN)),
        )  # fmt: skip
        main = (
            Field("id", "ID", required=True, fixed=True, placeholder="docker-local"),
            Field("config.kind", "Provider", "cards", options=kinds, default="container", also="provider"),
        )  # fmt: skip
        more = (Field("description", "Description"), Field("labels", "Labels", "pairs"))
        return [Section("", main), Section("Notes", more, id="notes")]

    def _store(self, request: HttpRequest, row: Any, body: Item) -> HttpResponse:
        by_form = request.POST.get("_form") != "yaml"
        if row is None and by_form and body.get("provider") == "local" and not request.POST.get(KNOWN.path):
            raise Invalid("The provider is not valid.", errors=[FieldError(KNOWN.path, "has to be ticked")])
        return super()._store(request, row, body)

    def more_of(self, request: HttpRequest, rows: Sequence[Any]) -> Mapping[int, Mapping[str, Any]]:
        live = Count("templates", filter=Q(templates__deleted_at=None), distinct=True)
        used = Count("workspaces", filter=Q(workspaces__deleted_at=None), distinct=True)
        found = WorkspaceProvider.objects.filter(pk__in=[row.pk for row in rows]).annotate(t=live, w=used)
        return {row.pk: {"templates": row.t, "workspaces": row.w} for row in found}

    def more_urls(self) -> list[URLPattern]:
        check = self.act("check", "Provider {} was checked just now.")
        return [
            path("new/test/", page(self.test), name="provider-test"),
            path("<str:id>/check/", check, name="provider-check"),
        ]

    def actions(self, request: HttpRequest, row: Any, item: Item) -> list[dict[str, Any]]:
        if not self.may_create(request):
            return []
        return [{"label": "Check now", "url": self.href(row.public_id, "check"), "icon": "arrow-path"}]

    def row_actions(self, request: HttpRequest, row: Any, item: Item) -> list[dict[str, Any]]:
        return self.actions(request, row, item)

    def tab_context(self, request: HttpRequest, row: WorkspaceProvider, item: Item, tab: str) -> dict[str, Any]:
        from workspaces.pages.templates import TEMPLATES
        from workspaces.pages.workspaces import WORKSPACES

        if tab == "templates":
            rows = TEMPLATES.door(request).rows().filter(provider=row)
            return {"listing": TEMPLATES.listing(request, rows), "listed": TEMPLATES}
        if tab == "workspaces":
            rows = WORKSPACES.door(request).rows().filter(provider=row)
            return {"listing": WORKSPACES.listing(request, rows), "listed": WORKSPACES}
        if tab == "activity":
            return {"entries": audited(row)}
        why = row.engine.get("limit_reasons", {})
        limits = [(LIMIT_NAMES.get(name, name), worth, why.get(name, "")) for name, worth in row.enforces.items()]
        exposed = [text for text in open_to(row.config) if text]
        return {
            "limits": limits,
            "exposed": exposed,
            "unowned": unowned.recent(row.slug) if self.user(request).is_admin else [],
        }

    def consequences(self, request: HttpRequest, row: WorkspaceProvider) -> dict[str, Any]:
        lines = ["The settings and the stored credentials of this engine. The engine itself and what is on it stay."]
        return {"lines": lines, "type_id": False}

    def test(self, request: HttpRequest) -> HttpResponse:
        """Tests what the form says, saved or not."""
        self.only_makers(request)
        status: Any = None
        error: PrimerError | None = None
        exposed: list[str] = []
        if request.method != "POST":
            return HttpResponseRedirect(self.base + "new/")
        began = time.monotonic()
        try:
            body = self.posted(request)
            asked: Item = {name: body[name] for name in ("provider", "config") if name in body}
            exposed = [text for text in open_to(body.get("config") or {}) if text]
            row = self.door(request).get(body["id"]) if request.POST.get("_id") else None
            asked["id"] = row.slug if row is not None else "unsaved"
            status = self.door(request).view("POST", "create").check_unsaved(asked, row)
        except Exception as exc:
            error = problems.to_error(exc)
        took = round(1000 * (time.monotonic() - began))
        context = {"status": status, "error": error, "pages": self, "took_ms": took, "exposed": exposed}
        return part(request, "providers/tested.html", context)


PROVIDERS = ProviderPages()
