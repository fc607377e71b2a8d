"""Making and changing an object of one kind: Form and YAML post to the same validation, refusals stand beside their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.text import capfirst

from accounts.models import User
from accounts.pages import form as forms
from accounts.pages import rows, unsaid
from accounts.pages.door import Door
from accounts.pages.meanings import described
from accounts.pages.views import UNPROCESSABLE, done
from accounts.permissions import may_change
from primer_site import documents, problems
from primer_site.errors import FieldError, Forbidden, Invalid, PreconditionFailed, PrimerError, printable

Item = dict[str, Any]
TYPED = "typed in this form"
READ_ONLY = frozenset({"created_at", "updated_at", "status", "isolates", "owner"})


class Editing:
    """The half of a kind's pages that writes; the other half says which fields there are."""

    kind: ClassVar[str]
    viewset: ClassVar[type[Any]]
    noun: ClassVar[str]
    form_template: ClassVar[str] = "form.html"
    shape: ClassVar[type[Any] | None] = (
        None  # the serializer of what the form posts, where the view has another for reads
    )
    yaml_form: ClassVar[bool] = True
    made_by_people: ClassVar[bool] = True  # has a slug and can be edited

    def sections(self, request: HttpRequest, body: Mapping[str, Any], *, editing: bool) -> list[forms.Section]:
        """The form's fields, for what is chosen already in `body`."""
        raise NotImplementedError

    def start_body(self, request: HttpRequest) -> Item:
        """What a new form holds before anything is typed; the URL may preset it."""
        return {}

    def after_create(self, item: Item) -> str:
        return self.href(item["id"])

    def href(self, public_id: str, *rest: str) -> str:
        raise NotImplementedError

    def door(self, request: HttpRequest) -> Door:
        return Door(self.viewset, request)

    def may_create(self, request: HttpRequest) -> bool:
        raise NotImplementedError

    def context(self, **given: Any) -> dict[str, Any]:
        raise NotImplementedError

    def only_makers(self, request: HttpRequest) -> None:
        """Raises `Forbidden` for whoever may not make one."""
        if not self.may_create(request):
            need = "the role admin" if getattr(self.viewset, "admin_only", False) else "the role member"
            raise Forbidden(f"Making this needs {need}. An admin grants it.")

    def posted(self, request: HttpRequest) -> Item:
        """What a form says that is not to be stored: of a new object, or over the one that it names in `_id`."""
        stored = request.POST.get("_id", "")
        door = self.door(request)
        base = dict(door.shown(door.get(stored))) if stored else {}
        if request.POST.get("_form") == "yaml":
            tree = documents.read(request.POST.get("yaml", "").replace("\r\n", "\n"))
            body: Item = _spec_of(tree, self.kind).value
        else:
            body = self.body_of(request, base, editing=bool(stored))
            unsaid.refuse(self.sections(request, body, editing=bool(stored)), body, base, whole=False)
        return {
            **{name: value for name, value in body.items() if name not in READ_ONLY},
            **({"id": stored} if stored else {}),
        }

    def new(self, request: HttpRequest) -> HttpResponse:
        self.only_makers(request)
        if request.method == "POST":
            return self._submit(request, None, {})
        return self._form(request, None, self.start_body(request))

    def edit(self, request: HttpRequest, id: str) -> HttpResponse:
        if not self.made_by_people:
            raise Http404
        door = self.door(request)
        row = door.get(id)
        if not may_change(self.user(request), row):
            raise Forbidden(f"Only its owner or an admin may change this {self.noun}.")
        item = dict(door.shown(row))
        if request.method == "POST":
            return self._submit(request, row, item)
        return self._form(request, row, item)

    @staticmethod
    def user(request: HttpRequest) -> User:
        if not isinstance(request.user, User):
            raise Forbidden
        return request.user

    def _submit(self, request: HttpRequest, row: Any, base: Item) -> HttpResponse:
        if request.POST.get("_form") == "yaml":
            return self._submit_yaml(request, row, base)
        body: Item = base
        try:
            body = self.body_of(request, base, editing=row is not None)
            if "_redraw" in request.POST or rows.CHANGE in request.POST:  # another shape is drawn, nothing is stored
                return self._form(request, row, body)
            unsaid.refuse(self.sections(request, body, editing=row is not None), body, base)
            return self._store(request, row, body)
        except Exception as exc:
            return self._form(request, row, body, error=_known(exc))

    def _submit_yaml(self, request: HttpRequest, row: Any, base: Item) -> HttpResponse:
        text = request.POST.get("yaml", "").replace("\r\n", "\n")
        spec: documents.Tree | None = None
        try:
            spec = _spec_of(documents.read(text), self.kind)
            return self._store(
                request, row, {name: value for name, value in spec.value.items() if name not in READ_ONLY}
            )
        except Exception as exc:
            error = _known(exc)
            if isinstance(exc, PreconditionFailed) and spec is not None:  # valid, and late: what differs is shown
                return self._form(request, row, {**base, **spec.value}, error=exc, text=text)
            return self._form(
                request, row, base, error=_with_lines(error, spec) if spec is not None else error, text=text
            )

    def body_of(self, request: HttpRequest, base: Item, *, editing: bool) -> Item:
        """The posted form as a body, read twice: what is asked may depend on what was chosen."""
        kept = {name: value for name, value in base.items() if name not in READ_ONLY}
        post, _ = rows.changed(request.POST)
        first = forms.read(self.sections(request, kept, editing=editing), post, kept)
        return forms.read(self.sections(request, first, editing=editing), post, kept)

    def _store(self, request: HttpRequest, row: Any, body: Item) -> HttpResponse:
        door = self.door(request)
        if row is None:
            item = door.create(body)
            return done(request, f"{capfirst(self.noun)} {item['id']} created.", self.after_create(item))
        rev = request.POST.get("_rev", "")
        if "_overwrite" in request.POST:
            rev = str(door.get(row.public_id).spec_rev)
        door.replace(row.public_id, body, rev=rev)
        return done(request, f"{capfirst(self.noun)} {row.public_id} saved.", self.href(row.public_id))

    def _form(
        self, request: HttpRequest, row: Any, body: Item, error: PrimerError | None = None, text: str | None = None
    ) -> HttpResponse:
        editing = row is not None
        sections = described(self.sections(request, body, editing=editing), self.shape or self.viewset.serializer_class)
        form = forms.bind(sections, body, error, editing=editing)
        form.at = rows.changed(request.POST)[1] or request.POST.get("_redraw", "")
        changed = isinstance(error, PreconditionFailed)
        spec = forms.copied({name: value for name, value in body.items() if name not in READ_ONLY})
        context = self.context(
            form=form, error=error, row=row, editing=editing, tab="yaml" if text is not None or request.GET.get("as") == "yaml" else "form",
            yaml=text if text is not None else documents.write({"kind": self.kind, "spec": spec}) if self.yaml_form else "",
            rev=request.POST.get("_rev") or (row.spec_rev if row is not None else ""), changed_meanwhile=changed, touched=request.method == "POST",
            differences=self._differences(request, row, _unsaid(body, form)) if changed else [],
        )  # fmt: skip
        return render(request, self.form_template, context, status=UNPROCESSABLE if error else 200)

    def _differences(self, request: HttpRequest, row: Any, body: Item) -> list[tuple[str, Any, Any]]:
        """What is stored now and what the form says, where they differ."""
        now = self.door(request).shown(self.door(request).get(row.public_id))
        return [
            (name, now.get(name), value)
            for name, value in body.items()
            if name not in READ_ONLY and now.get(name) != value
        ]


def _unsaid(body: Item, form: forms.Form) -> Item:
    """The body without the secrets that were typed: they are used, and never shown again."""
    found: Item = forms.copied(body)
    for one in form.bound():
        value = forms.dig(found, one.field.path)
        if one.field.control == "secret" and isinstance(value, str):
            forms.put(found, one.field.path, TYPED)
        if one.field.control == "env" and isinstance(value, Mapping):
            hidden = {
                name: TYPED if isinstance(inner, Mapping) and "secret" in inner else inner
                for name, inner in value.items()
            }
            forms.put(found, one.field.path, hidden)
    return found


def _known(exc: Exception) -> PrimerError:
    """The refusal that a form can show; a bug goes on to be one."""
    error = problems.to_error(exc)
    if isinstance(error, problems.Bug):
        raise exc
    return error


def _spec_of(tree: documents.Tree, kind: str) -> documents.Tree:
    """The spec of a manifest (`kind` and `spec`), or the spec alone; `Invalid` for a manifest of another kind."""
    if "spec" not in tree.value or not set(tree.value) <= {"kind", "spec"}:
        return tree
    if (found := tree.value.get("kind", kind)) != kind:
        where = f"{documents.at_line(tree, 'kind')}: kind"
        raise Invalid(
            f"This page makes objects of the kind {kind}, and the text is of another.",
            errors=[FieldError(where, f'is "{printable(str(found))}"; here it must be {kind}')],
            hint="Put it into the page of its own kind, or send it with primectl apply.",
        )
    spec = tree.value["spec"]
    if not isinstance(spec, dict):
        raise Invalid("The spec is not a mapping.", errors=[FieldError("spec", "must be a mapping")])
    return tree.below(("spec",), spec)


def _with_lines(error: PrimerError, tree: documents.Tree) -> PrimerError:
    """The same refusals, each with the line of the text that it is about."""
    found = [FieldError(f"{documents.at_line(tree, one.field)}: {one.field}", one.message) for one in error.errors]
    return Invalid(error.detail, errors=found, hint=error.hint_text)
