"""Compute > LLM providers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path

from accounts.pages.editing import Item
from accounts.pages.form import LEFT_OUT, Field, Option, Part, Section, dig
from accounts.pages.resource import ResourcePages, audited
from accounts.pages.table import Column, Filter
from accounts.pages.views import is_fragment, page, part, suggestions
from agents.api import LLMProviderViewSet
from agents.llm import KINDS
from agents.models import Health, LLMKind, LLMProvider
from primer_site import problems
from primer_site.errors import FieldError, Invalid, PrimerError

MODEL = Field("config.default_model", "Default model", empty=LEFT_OUT, fetch="/compute/llm-providers/new/models/")
ENDPOINT = (
    Field("config.api_key", "API key", "secret"),
    Field("config.api_key_env", "Environment variable", empty=LEFT_OUT),
    Field("config.base_url", "Base URL", empty=LEFT_OUT, placeholder="the vendor's own"),
    MODEL,
    Field("config.timeout_s", "Timeout", "number", empty=LEFT_OUT),
    Field("config.max_retries", "Retries", "number", empty=LEFT_OUT),
    Field("config.max_concurrency", "Concurrency", "number", empty=LEFT_OUT),
    Field("config.prices", "Prices", "table", empty=LEFT_OUT, keyed=True, parts=(
        Part("model", "Model", placeholder="model"), Part("input", "Input", "number", "input"), Part("output", "Output", "number", "output"),
        Part("cache_read", "Cache read", "number", "cache read"), Part("cache_write", "Cache write", "number", "cache write"))),
)  # fmt: skip
SCRIPTED = (
    MODEL,
    Field("config.turns", "Turns", "yaml", empty=LEFT_OUT),
)  # fmt: skip
NOTES = {
    "anthropic": "the Messages API", "openai": "Chat Completions",
    "scripted": "deterministic, for the first run and for tests; needs no key",
}  # fmt: skip


def key_of(item: Item, row: Any) -> str:
    """`…a1b2`, or the variable's name."""
    config = item["config"]
    if (config.get("api_key") or {}).get("set"):
        return f"set, ends in {config['api_key'].get('last4') or '…'}"
    return f"from {config['api_key_env']}" if config.get("api_key_env") else ""


class LLMProviderPages(ResourcePages):
    kind = "llm_provider"
    viewset = LLMProviderViewSet
    base = "/compute/llm-providers/"
    section = "Compute"
    title = "LLM providers"
    noun = "LLM provider"
    icon = "cpu-chip"
    templates = "llm_providers"
    form_template = "llm_providers/form.html"
    empty = "The scripted model works without a key."
    empty_cli = "primectl create -f scripted-model.yaml"
    tabs = (("", "Overview"), ("agents", "Agents"), ("activity", "Activity"), ("yaml", "YAML"))
    page_sorts: ClassVar[Mapping[str, str]] = {"provider": "provider", "health": "health"}
    columns: ClassVar[Sequence[Column]] = (
        Column("ID", "id", "id", sort="id"),
        Column("Type", "provider", "kind", sort="provider"),
        Column("Base URL", "config.base_url", "code", narrow=True),
        Column("Default model", "config.default_model", "code"),
        Column("Key", "config.api_key", value=key_of, narrow=True),
        Column("Health", "status.health", "chip", sort="health", vocabulary="health"),
        Column("Agents", "agents", "number"),
    )
    filters: ClassVar[Sequence[Filter]] = (
        Filter("provider", "Type", "provider", tuple(LLMKind.choices)),
        Filter("health", "Health", "health", tuple(Health.choices)),
    )

    def sections(self, request: HttpRequest, body: Mapping[str, Any], *, editing: bool) -> list[Section]:
        kinds = tuple(
            Option(kind, label, NOTES.get(kind, ""), disabled=kind not in KINDS, fields=SCRIPTED if kind == "scripted" else ENDPOINT)
            for kind, label in LLMKind.choices
        )  # fmt: skip
        main = (
            Field("id", "ID", required=True, fixed=True, placeholder="claude"),
            Field("config.kind", "Type", "cards", options=kinds, default=next(iter(KINDS)), also="provider"),
        )  # fmt: skip
        more = (Field("description", "Description"), Field("labels", "Labels", "pairs"))
        return [Section("", main), Section("Notes", more, id="notes")]

    def _store(self, request: HttpRequest, row: Any, body: Item) -> HttpResponse:
        prices = dig(body, "config.prices")
        if isinstance(prices, Mapping) and "" in prices:
            errors = [FieldError("config.prices", "has a row without its model")]
            raise Invalid("The LLM provider is not valid.", errors=errors)
        return super()._store(request, row, body)

    def more_of(self, request: HttpRequest, rows: Sequence[Any]) -> Mapping[int, Mapping[str, Any]]:
        live = Count("agents", filter=Q(agents__deleted_at=None))
        found = LLMProvider.objects.filter(pk__in=[row.pk for row in rows]).annotate(n=live)
        return {row.pk: {"agents": row.n} for row in found}

    def more_urls(self) -> list[URLPattern]:
        return [
            path("new/test/", page(self.test_unsaved), name="llm-test-unsaved"),
            path("new/models/", page(self.models), name="llm-models"),
            path("<str:id>/test/", page(self.test), name="llm-test"),
        ]

    def test_unsaved(self, request: HttpRequest) -> HttpResponse:
        """One tiny call with what the form says, saved or not. What was typed in is used, and not shown again."""
        self.only_makers(request)
        found: Any = None
        error: PrimerError | None = None
        if request.method != "POST":
            return HttpResponseRedirect(self.base + "new/")
        try:
            view, body, row = self._asked(request)
            found = view.test_unsaved(body, row)
        except Exception as exc:
            error = problems.to_error(exc)
        return part(request, "llm_providers/tested.html", {"found": found, "error": error, "pages": self})

    def models(self, request: HttpRequest) -> HttpResponse:
        """Names for the field's list, of the endpoint that the form describes."""
        self.only_makers(request)
        if request.method != "POST":
            return HttpResponseRedirect(self.base + "new/")

        def ask() -> list[str]:
            view, body, row = self._asked(request)
            return list(view.models_unsaved(body, row))

        return suggestions(request, ask)

    def _asked(self, request: HttpRequest) -> tuple[Any, Item, LLMProvider | None]:
        body = self.posted(request)
        row = self.door(request).get(body["id"]) if request.POST.get("_id") else None
        asked: Item = {name: body[name] for name in ("provider", "config") if name in body}
        view = self.door(request).view("POST", "create")
        return view, {**asked, "id": row.slug if row is not None else "unsaved"}, row

    def test(self, request: HttpRequest, id: str) -> HttpResponse:
        """One tiny call, and what came of it, as a part of the page."""
        found: Any = None
        error: PrimerError | None = None
        door = self.door(request)
        row = door.get(id)
        if request.method != "POST":
            return HttpResponseRedirect(self.href(id))  # a link must not make a call that costs
        try:
            found = door.call("POST", "test", id=id).data
        except Exception as exc:
            error = problems.to_error(exc)
        row = door.get(id)  # with the health that the call has found
        context = {"found": found, "error": error, "row": row, "pages": self, "swaps": is_fragment(request)}
        return part(request, "llm_providers/tested.html", context)

    def tab_context(self, request: HttpRequest, row: LLMProvider, item: Item, tab: str) -> dict[str, Any]:
        from agents.pages.agents import AGENTS

        if tab == "agents":
            rows = AGENTS.door(request).rows().filter(provider=row)
            return {"listing": AGENTS.listing(request, rows), "listed": AGENTS}
        if tab == "activity":
            return {"entries": audited(row)}
        config, key = item["config"], key_of(item, row)
        needs = row.provider != LLMKind.SCRIPTED and not config.get("base_url")
        return {"key": key, "keyless": self.may_create(request) and needs and not key}

    def consequences(self, request: HttpRequest, row: LLMProvider) -> dict[str, Any]:
        return {"lines": ["The settings and the stored key of this model endpoint."], "type_id": False}


LLM_PROVIDERS = LLMProviderPages()


def names_of(request: HttpRequest, slug: str) -> list[str]:
    """Models of a stored provider; none where none is named."""
    return list(LLM_PROVIDERS.door(request).call("GET", "models", id=slug).data["items"]) if slug else []
