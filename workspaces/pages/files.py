"""Files: pick a workspace, walk its directories, look at a file. The runtime in the sandbox does every read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import quote

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.templatetags.static import static

from accounts.pages.door import Door
from accounts.pages.table import number
from accounts.pages.views import STOP_POLLING, is_fragment
from primer_site import shells
from primer_site.errors import FieldError, Invalid, NotFound, PrimerError
from workspaces import services
from workspaces.api import WorkspaceViewSet
from workspaces.execution import FileInfo, Listing
from workspaces.fields import path_problem
from workspaces.files_api import FileView
from workspaces.files_shapes import when
from workspaces.models import Phase, Workspace
from workspaces.pages import viewer
from workspaces.pages.workspaces import WORKSPACES
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import FileMissing, FilePermission

T = TypeVar("T")
ENTRIES = 500  # of a directory on one page
MATCHED_PAGES = 20  # that a filter looks through at once
ACE = "django_ace/ace/ace.js"


def index(request: HttpRequest) -> HttpResponse:
    """Which workspace? Running ones first."""
    rows = WORKSPACES.door(request).rows({"q": request.GET.get("q", "")})
    ordered = sorted(rows.order_by("-last_activity_at")[:200], key=lambda row: row.phase != Phase.RUNNING)
    template = "files/picker.html" if is_fragment(request) else "files/index.html"
    return render(request, template, {"rows": ordered, "q": request.GET.get("q", ""), "heading": "Files"})


def workspace_of(request: HttpRequest, id: str) -> Workspace:
    door = Door(WorkspaceViewSet, request)
    if request.GET.get("as") == "state":  # a page that asks by itself is nobody at work, and opens nothing
        return door.look(id)  # type: ignore[no-any-return]
    row: Workspace = door.get(id)
    services.workspace_touch(row.pk, row.last_activity_at)
    return row


def changed(request: HttpRequest, row: Workspace, path: str) -> HttpResponse:
    """The note that a file is not what the page shows any more; nothing (204) while it is, and where nobody can be asked."""
    try:
        now = stamp(ask(row, lambda box: box.stat(path)))
    except (FileMissing, NotFound):
        now = ""
    except PrimerError:
        return HttpResponse(status=204)
    if now == request.GET.get("stamp", ""):
        return HttpResponse(status=204)
    return render(
        request, "files/changed.html", {"gone": not now, "url": file_url(row.slug, path)}, status=STOP_POLLING
    )


def stamp(info: FileInfo) -> str:
    """What a change of a file changes: asked each few seconds, so the content is not read for it."""
    return f"{info.modified_at:.6f}-{info.size_bytes}"


def ask(row: Workspace, work: Callable[[Sandbox], Awaitable[T]]) -> T:
    """As the API's own routes of files ask."""
    return FileView().sandbox(row, work)


def checked(path: str) -> str:
    path = path.strip("/")
    if path and (problem := path_problem(path)):
        raise Invalid("path is not valid.", errors=[FieldError("path", problem)])
    return path


def browse(request: HttpRequest, id: str, path: str = "") -> HttpResponse:
    """One view for directories and files: the directory at the left, what is chosen at the right."""
    return WORKSPACES.or_gone(request, id, lambda: _browse(request, id, path))


def _browse(request: HttpRequest, id: str, path: str) -> HttpResponse:
    row = workspace_of(request, id)
    path = checked(path)
    if request.method == "POST":
        from workspaces.pages import changes

        return changes.change(request, row, path)
    if request.GET.get("as") == "image":
        return viewer.image(lambda work: ask(row, work), path)
    if request.GET.get("as") == "state":
        return changed(request, row, path)
    context = browse_context(request, row, path)
    error = context.get("error")
    running = row.phase == Phase.RUNNING
    if running and isinstance(error, FileMissing | NotFound):
        raise NotFound(
            f"There is no {path} in workspace {id} now.", hint="It may have been moved or removed."
        ) from error
    return render(request, "files/browse.html", context, status=error.status if error is not None and running else 200)


def browse_context(request: HttpRequest, row: Workspace, path: str) -> dict[str, Any]:
    """What the page shows; `error` when the sandbox cannot be asked."""
    context: dict[str, Any] = WORKSPACES.detail_context(request, row, "files") | {
        "path": path, "path_url": file_url(row.slug, path), "heading": "Files", "crumbs": crumbs(row.slug, path), "download_url": download_url(row.slug, path), "cli": cli_line(row.slug, path),
        "editing": request.GET.get("edit") == "1", "ace": static(ACE), "ace_base": f"{settings.STATIC_URL}django_ace/ace",
    }  # fmt: skip
    try:
        return context | _look(request, row, path)
    except PrimerError as exc:
        return context | {"error": exc}


def _look(request: HttpRequest, row: Workspace, path: str) -> dict[str, Any]:
    info = ask(row, lambda box: box.stat(path)) if path else None
    directory = path if info is None or info.kind == "dir" else path.rpartition("/")[0]
    match = request.GET.get("match", "").strip()
    found = ask(row, lambda box: entries_of(box, directory, request.GET.get("cursor") or None, match))
    hidden = request.GET.get("hidden") == "1"
    shown = [item for item in found.items if hidden or not item.name.startswith(".")]
    context: dict[str, Any] = {
        "directory": directory, "directory_url": file_url(row.slug, directory), "entries": [entry(row.slug, item, path) for item in order(shown)], "hidden": hidden,
        "hidden_count": len(found.items) - len(shown), "next_cursor": found.cursor, "parent": parent_url(row.slug, directory),
        "match": match, "total": len(found.items), "tar_url": download_url(row.slug, directory or "."),
    }  # fmt: skip
    if info is not None and info.kind == "dir":
        context["cli"] = cli_line(row.slug, path, folder=True)
    elif info is not None:
        context |= {"info": info, "modified": when(info.modified_at), "stamp": stamp(info)}
        context |= _shown(request, row, info)
    return context


def _shown(request: HttpRequest, row: Workspace, info: FileInfo) -> dict[str, Any]:
    """The file as the viewer draws it; one that its own sandbox may not read says so beside the directory."""
    steps = number(request, "more", 0, viewer.MOST_STEPS, least=0)
    try:
        return viewer.show(
            lambda work: ask(row, work), info, request.GET.get("view", ""), steps, wide=request.GET.get("wide") == "1"
        )
    except FilePermission as exc:
        return {"viewer": "refused", "refusal": exc}


async def entries_of(box: Sandbox, directory: str, cursor: str | None, match: str) -> Listing:
    """A page of a directory; with `match` those whose name holds it, from as many pages as it takes within MATCHED_PAGES."""
    found = await box.list(directory, cursor=cursor, limit=ENTRIES)
    if not match:
        return found
    kept = matching(found.items, match)
    for _ in range(MATCHED_PAGES):
        if found.cursor is None or len(kept) >= ENTRIES:
            break
        found = await box.list(directory, cursor=found.cursor, limit=ENTRIES)
        kept += matching(found.items, match)
    return Listing(tuple(kept), found.cursor)


def matching(items: Iterable[FileInfo], match: str) -> list[FileInfo]:
    return [item for item in items if match.lower() in item.name.lower()]


def order(items: list[FileInfo]) -> list[FileInfo]:
    return sorted(items, key=lambda item: (item.kind != "dir", item.name.lower()))


def entry(id: str, item: FileInfo, chosen: str) -> dict[str, Any]:
    """One line of a directory; what is neither file nor directory is shown and leads nowhere.

    A name that is no UTF-8 fits into no address of a page: it can be downloaded.
    """
    known = item.kind in ("file", "dir")
    opens = known and not any("\ud800" <= c <= "\udfff" for c in item.path)
    return {
        "name": item.name, "kind": item.kind, "size": item.size_bytes, "modified": when(item.modified_at),
        "href": file_url(id, item.path) + ("/" if item.kind == "dir" else "") if opens else "",
        "download": download_url(id, item.path) if known and not opens else "",
        "current": item.path == chosen, "path": item.path,
    }  # fmt: skip


def cli_line(id: str, path: str, *, folder: bool = False) -> str:
    """What reads the same in a terminal. The names in it are the sandbox's own choice."""
    if not path:
        return shells.line("primectl workspace files ls", id)
    target = "-O " + shells.word("./" + path.rpartition("/")[2])
    return shells.line("primectl workspace files get", id, path, options=target if folder else "--content")


def file_url(id: str, path: str) -> str:
    return f"/files/{id}/" + quote(path, safe="/", errors="surrogateescape")


def download_url(id: str, path: str) -> str:
    return f"/v1/workspaces/{id}/files/download?path=" + quote(path, safe="", errors="surrogateescape")


def parent_url(id: str, directory: str) -> str:
    if not directory:
        return ""
    above = directory.rpartition("/")[0]
    return file_url(id, above) + ("/" if above else "")


def crumbs(id: str, path: str) -> list[tuple[str, str]]:
    parts = [part for part in path.split("/") if part]
    return [(part, file_url(id, "/".join(parts[: index + 1]))) for index, part in enumerate(parts)]
