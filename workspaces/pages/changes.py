"""Changes of files from the page: upload, new, rename, delete, save. The runtime in the sandbox does every one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from rest_framework.request import Request

from accounts.audit import Actor
from accounts.pages.text import cut_lines
from accounts.pages.views import done
from accounts.permissions import require_change
from primer_site.errors import Conflict, FieldError, Invalid, NotFound, PreconditionFailed, PrimerError, TooLarge
from workspaces import file_changes
from workspaces.diff import unified
from workspaces.files_api import raw_body
from workspaces.models import Workspace
from workspaces.pages import line_ends, viewer
from workspaces.pages.files import ask, browse_context, checked, file_url
from workspaces.pages.workspaces import WORKSPACES
from workspaces.sandbox_errors import FileExists, FileMissing

UPLOAD = 100 * 1024**2  # bytes of one file
MODE = 0o644
DIFF_LINES = 400
Data = bytes | AsyncIterator[bytes]


def change(request: HttpRequest, row: Workspace, path: str) -> HttpResponse:
    """Does what the form says, and goes back to where it can be seen."""
    require_change(WORKSPACES.user(request), row)
    verb = request.POST.get("do", "")
    if verb not in CHANGES:
        raise Invalid("There is no such change.", errors=[FieldError("do", f"must be one of {', '.join(CHANGES)}")])
    try:
        return CHANGES[verb](request, row, path)
    except PrimerError as exc:
        context = browse_context(request, row, path)
        if "error" in context:  # there is no page to say it on
            raise
        context |= {"refused": exc, "typed": request.POST}
        if verb == "save":
            context |= {"text": request.POST.get("content", ""), "etag": request.POST.get("etag", ""), "editing": True}
        return render(request, "files/browse.html", context, status=exc.status)


def put(
    by: Actor, row: Workspace, path: str, data: Data, *, etag: str | None = None, only_new: bool = False
) -> None:  # fmt: skip
    """Writes a whole file, or leaves the old one; `PreconditionFailed` or `FileExists` when it is not as expected."""
    file_changes.write(by, row, path, data, mode=MODE, if_match=[etag] if etag else None, only_new=only_new)


def _child(path: str, name: str) -> str:
    if "/" in name:
        raise Invalid("The name is not valid.", errors=[FieldError("name", "must not contain /")])
    return checked(f"{path}/{name}")


def _taken(path: str) -> PrimerError:
    return Conflict(f"{path} exists already.", hint="Choose another name. What is there was not changed.")


def upload(request: HttpRequest, row: Workspace, path: str) -> HttpResponse:
    files = request.FILES.getlist("files")
    if not files:
        raise Invalid("No file was chosen.", errors=[FieldError("files", "is required")])
    taken = []
    for one in files:
        if (one.size or 0) > UPLOAD:
            raise TooLarge(f"{one.name} is larger than 100 MiB.", hint="Use primectl workspace cp.")
        data = raw_body(cast(Request, SimpleNamespace(_request=one)))  # in pieces, as the API takes a body
        try:
            put(Actor.of(request), row, _child(path, one.name or ""), data, only_new=not request.POST.get("overwrite"))
        except (FileExists, PreconditionFailed):
            taken.append(one.name or "")
    if taken:
        hint = "Tick Replace existing ones, or rename them. The others were uploaded."
        raise Conflict(f"There already: {', '.join(taken)}.", hint=hint)
    return done(
        request,
        f"{len(files)} file{'s' if len(files) > 1 else ''} uploaded.",
        file_url(row.slug, path) + ("/" if path else ""),
    )


def new_file(request: HttpRequest, row: Workspace, path: str) -> HttpResponse:
    target = _child(path, request.POST.get("name", ""))
    try:
        put(Actor.of(request), row, target, b"", only_new=True)
    except (FileExists, PreconditionFailed) as exc:
        raise _taken(target) from exc
    return done(request, f"{target} made.", file_url(row.slug, target))


def new_folder(request: HttpRequest, row: Workspace, path: str) -> HttpResponse:
    target = _child(path, request.POST.get("name", ""))
    try:
        file_changes.make_dir(Actor.of(request), row, target)
    except FileExists as exc:
        raise _taken(target) from exc
    return done(request, f"{target} made.", file_url(row.slug, target) + "/")


def move(request: HttpRequest, row: Workspace, path: str) -> HttpResponse:
    target = checked(request.POST.get("target", ""))
    try:
        file_changes.move(Actor.of(request), row, path, target)
    except FileExists as exc:
        raise _taken(target) from exc
    return done(request, f"{path} is now {target}.", file_url(row.slug, target))


def delete(request: HttpRequest, row: Workspace, path: str) -> HttpResponse:
    file_changes.delete(Actor.of(request), row, path, recursive=True)
    above = path.rpartition("/")[0]
    return done(request, f"{path} deleted.", file_url(row.slug, above) + ("/" if above else ""))


def save(request: HttpRequest, row: Workspace, path: str) -> HttpResponse:
    """Saves under the ETag that the editor was opened with; somebody else's change is shown, never overwritten unasked."""
    content = request.POST.get("content", "")
    etag = None if request.POST.get("mine") else request.POST.get("etag") or None
    try:
        content = line_ends.restored(_text(row, path), content)
        put(Actor.of(request), row, path, content.encode(), etag=etag)
    except PreconditionFailed as exc:
        return _conflict(request, row, path, content, exc)
    return done(request, f"{path} saved.", file_url(row.slug, path))


def _text(row: Workspace, path: str) -> str:
    """What the file holds now, whose line ends a saved text keeps; "" where it is gone."""
    try:
        found = ask(row, lambda box: box.read(path, limit=viewer.WHOLE))
    except (FileMissing, NotFound):
        return ""
    return str(found.data.decode("utf-8", "replace"))


def _conflict(request: HttpRequest, row: Workspace, path: str, mine: str, error: PrimerError) -> HttpResponse:
    found = ask(row, lambda box: box.read(path, limit=viewer.WHOLE))
    mine = mine.removeprefix(line_ends.BOM)
    theirs = found.data.decode("utf-8", "replace")
    diff = [cut_lines(line) for line in unified(theirs, mine, context=2).split("\n")[:DIFF_LINES]]
    context: dict[str, Any] = browse_context(request, row, path)
    context |= {"conflict": error, "diff": diff, "text": mine, "etag": found.info.etag, "editing": True}
    return render(request, "files/browse.html", context, status=error.status)


CHANGES: dict[str, Callable[[HttpRequest, Workspace, str], HttpResponse]] = {
    "upload": upload, "file": new_file, "folder": new_folder, "move": move, "delete": delete, "save": save,
}  # fmt: skip
