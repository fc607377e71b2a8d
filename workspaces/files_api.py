"""Routes of files: the runtime in the sandbox does the work, with the sandbox's own rights; here bytes and errors pass."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import IO, Any, TypeVar
from urllib.parse import parse_qsl

from django.http import HttpResponse, JsonResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.views import APIView

from accounts.audit import Actor
from accounts.permissions import require_change
from accounts.rest import do_once, is_dry, request_user
from primer_site.errors import FieldError, Invalid, NotText, Unavailable
from primer_site.pagination import whole_number
from primer_site.parsing import StrictJSONParser
from workspaces import access, file_changes, file_trials, services
from workspaces.exec_api import AnyAccept, only, visible_workspace
from workspaces.execution import MIB
from workspaces.fields import ModeField, decode_base64, path_problem
from workspaces.file_changes import CALL_S
from workspaces.files_shapes import (
    DirSerializer,
    FileContentSerializer,
    FileListSerializer,
    FileSerializer,
    MoveSerializer,
    WriteSerializer,
    shown,
    when,
)
from workspaces.models import Workspace
from workspaces.output import Decoder
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import DiskFull

T = TypeVar("T")
NOTHING_DONE = OpenApiResponse(None, "A dry run: it could be done, and was not.")
PIECE = 256 * 1024
SMALL_BODY = 1 * MIB  # sent from memory, and again over a new channel when the old one breaks
PAGE, MAX_PAGE = 200, 1000
READ, MAX_READ = 1 * MIB, 16 * MIB
MAX_ETAGS = 20
ETAG = OpenApiParameter(
    "If-Match", OpenApiTypes.STR, OpenApiParameter.HEADER, description="The content that was read; `*`: only if there."
)
NONE = OpenApiParameter("If-None-Match", OpenApiTypes.STR, OpenApiParameter.HEADER, description="`*`: only if new.")
KNOWN = OpenApiParameter(
    "If-None-Match", OpenApiTypes.STR, OpenApiParameter.HEADER,
    description="The ETag that is known: content that is still so is a 304.",
)  # fmt: skip
PATH = OpenApiParameter("path", str, required=True, description="Relative to the workspace, or absolute below it.")


class RawParser(BaseParser):
    """The body itself, unread: a file goes from the spool to the sandbox in pieces."""

    media_type = "application/octet-stream"

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream


def answer(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> JsonResponse:
    """JSON in ASCII: names that are not UTF-8 travel as lone surrogates, which no UTF-8 text may hold."""
    return JsonResponse(body, status=status, headers=headers)


class FileView(APIView):
    """What every file route does first: the workspace, the right to it, the path."""

    content_negotiation_class = AnyAccept
    dry = True

    def workspace(self, request: Request, id: str, *known: str, write: bool = False) -> Workspace:
        """The workspace; `known` are the query parameters of the route, and others are refused."""
        row = visible_workspace(request, id)
        only(request, *known, *(["dry_run"] if write else []))
        if write:
            require_change(request_user(request), row, request.auth)
        if not (write and is_dry(request)):
            services.workspace_touch(row.pk, row.last_activity_at)
        return row

    def query(self, request: Request) -> dict[str, str]:
        """The query with bytes that are not UTF-8 kept: a file may be called like that."""
        return dict(parse_qsl(request.META.get("QUERY_STRING", ""), keep_blank_values=True, errors="surrogateescape"))

    def path(self, request: Request, *, root: bool = False) -> str:
        path = self.query(request).get("path", "")
        if root and path in ("", ".", "/"):
            return ""
        problem = path_problem(path.rstrip("/") if root else path)
        if problem:
            raise Invalid("path is not valid.", errors=[FieldError("path", problem)])
        return path

    def flag(self, request: Request, name: str) -> bool:
        value = request.query_params.get(name, "false")
        if value not in ("true", "false"):
            raise Invalid(f"{name} is not valid.", errors=[FieldError(name, "must be true or false")])
        return value == "true"

    def sandbox(self, row: Workspace, work: Callable[[Sandbox], Awaitable[T]], timeout: float = CALL_S) -> T:
        return file_changes.inside(row, work, timeout)

    def tried(self, row: Workspace, trial: Callable[[Sandbox], Awaitable[None]]) -> HttpResponse:
        """The answer of a dry run: the refusal that the change would meet, or nothing."""
        self.sandbox(row, trial)
        return HttpResponse(status=204)


class FilesView(FileView):
    parser_classes = (StrictJSONParser, RawParser)

    @extend_schema(
        parameters=[
            OpenApiParameter("path", str, description="The directory; the whole workspace without it."),
            OpenApiParameter("recursive", bool, description="Also what is below its directories."),
            OpenApiParameter("cursor", str, description="`next_cursor` of the page before."),
            OpenApiParameter("limit", int, description=f"Items a page, 1 to {MAX_PAGE}; {PAGE} without it."),
        ],
        responses={200: FileListSerializer},
    )  # fmt: skip
    def get(self, request: Request, id: str) -> HttpResponse:
        """One page of a directory; `recursive` lists directories before what they hold. Links are shown, not followed."""
        row = self.workspace(request, id, "path", "recursive", "cursor", "limit")
        path = self.path(request, root=True)
        recursive, limit = self.flag(request, "recursive"), whole_number(request, "limit", PAGE, 1, MAX_PAGE)
        cursor = self.query(request).get("cursor") or None
        found = self.sandbox(row, lambda box: box.list(path, recursive=recursive, cursor=cursor, limit=limit))
        return answer({"items": [shown(info) for info in found.items], "next_cursor": found.cursor})

    @extend_schema(
        request={"application/json": WriteSerializer, "application/octet-stream": OpenApiTypes.BINARY},
        parameters=[PATH, ETAG, NONE, OpenApiParameter("mode", str, description="With a raw body: permission bits.")],
        responses={204: OpenApiResponse(None, "Written; the ETag is of the new content. Of a dry run: it could be.")},
    )
    def put(self, request: Request, id: str) -> HttpResponse:
        """Writes a whole file at once, or leaves the old one.

        A dry run of any change of files looks at paths, at what is there, at preconditions and sizes; whether the sandbox's
        user may write there and its disk has room shows only in the doing.
        """
        row, path = self.workspace(request, id, "path", "mode", write=True), self.path(request)
        wanted, new = etags(request.headers.get("If-Match")), only_new(request)
        if request.content_type.split(";")[0].strip() == RawParser.media_type:
            mode = ModeField().to_internal_value(request.query_params.get("mode", "0644"))
            data = raw_body(request)
        else:
            body = WriteSerializer(data=request.data)
            body.is_valid(raise_exception=True)
            fields = body.validated_data
            mode, text = fields["mode"], fields["content"]
            if "mode" in request.query_params:
                raise Invalid("mode is not valid.", errors=[FieldError("mode", "belongs into the JSON body")])
            data = decode_base64(text, "content") if fields["encoding"] == "base64" else text.encode()

        if is_dry(request):
            _refuse_too_large(row, request, data)
            return self.tried(row, lambda box: file_trials.write(box, path, if_match=wanted, only_new=new))
        by = Actor.of(request)
        info = file_changes.write(by, row, path, data, mode=mode, if_match=wanted, only_new=new)
        return HttpResponse(status=204, headers={"ETag": f'"{info.etag}"'} if info.etag else {})

    @extend_schema(
        parameters=[PATH, ETAG, OpenApiParameter("recursive", bool, description="Also a directory that is not empty.")],
        responses={204: None},
    )
    def delete(self, request: Request, id: str) -> HttpResponse:
        """Removes a file, a link itself, or a directory (`recursive` when it is not empty)."""
        row, path = self.workspace(request, id, "path", "recursive", write=True), self.path(request)
        recursive, wanted = self.flag(request, "recursive"), etags(request.headers.get("If-Match"))
        if is_dry(request):
            return self.tried(row, lambda box: file_trials.delete(box, path, recursive=recursive, if_match=wanted))
        file_changes.delete(Actor.of(request), row, path, recursive=recursive, if_match=wanted)
        return HttpResponse(status=204)


class FileReadView(FileView):
    @extend_schema(
        parameters=[
            PATH, KNOWN, OpenApiParameter("encoding", str, enum=["text", "base64"], description="Of `content`; text without it."),
            OpenApiParameter("offset", int, description="The first byte."),
            OpenApiParameter("limit", int, description="Bytes, at most 16 MiB."),
        ],
        responses={200: FileContentSerializer, 304: OpenApiResponse(None, "You have it: see If-None-Match.")},
    )  # fmt: skip
    def get(self, request: Request, id: str) -> HttpResponse:
        """The content of a regular file, 16 MiB at most; `truncated` when there is more."""
        row = self.workspace(request, id, "path", "encoding", "offset", "limit")
        path = self.path(request)
        encoding = request.query_params.get("encoding", "text")
        if encoding not in ("text", "base64"):
            raise Invalid("encoding is not valid.", errors=[FieldError("encoding", "must be text or base64")])
        offset = whole_number(request, "offset", 0, 0, 10**15)
        limit = whole_number(request, "limit", READ, 1, MAX_READ)
        found = self.sandbox(row, lambda box: box.read(path, offset=offset, limit=limit))
        info = found.info
        known = etags(request.headers.get("If-None-Match"))
        if known is not None and info.etag is not None and (info.etag in known or "*" in known):
            return HttpResponse(status=304, headers={"ETag": f'"{info.etag}"'})
        content = (
            base64.b64encode(found.data).decode() if encoding == "base64" else text_of(found.data, found.truncated)
        )
        body = {"path": info.path, "encoding": encoding, "content": content, "size_bytes": info.size_bytes}
        body |= {"modified_at": when(info.modified_at), "etag": info.etag, "truncated": found.truncated}
        return answer(body, headers={"ETag": f'"{info.etag}"'} if info.etag else {})


class FileDirView(FileView):
    @extend_schema(request=DirSerializer, responses={201: FileSerializer, 204: NOTHING_DONE})
    def post(self, request: Request, id: str) -> HttpResponse:
        """Makes a directory, and with `parents` what is missing above it."""
        row = self.workspace(request, id, write=True)
        body = DirSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        path, parents = body.validated_data["path"], body.validated_data["parents"]

        if is_dry(request):
            return self.tried(row, lambda box: file_trials.make_dir(box, path, parents=parents))

        def work() -> HttpResponse:
            return answer(shown(file_changes.make_dir(Actor.of(request), row, path, parents=parents)), 201)

        return do_once(request, work, outside=True)


class FileMoveView(FileView):
    @extend_schema(request=MoveSerializer, responses={200: FileSerializer, 204: NOTHING_DONE})
    def post(self, request: Request, id: str) -> HttpResponse:
        """Renames a file or a directory within the workspace."""
        row = self.workspace(request, id, write=True)
        body = MoveSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        source, target, overwrite = (body.validated_data[name] for name in ("source", "target", "overwrite"))

        if is_dry(request):
            with _named_in(body.validated_data, row):
                return self.tried(row, lambda box: file_trials.move(box, source, target, overwrite=overwrite))

        def work() -> HttpResponse:
            with _named_in(body.validated_data, row):
                return answer(shown(file_changes.move(Actor.of(request), row, source, target, overwrite=overwrite)))

        return do_once(request, work, outside=True)


# -- small steps


@contextlib.contextmanager
def _named_in(move: dict[str, Any], row: Workspace) -> Iterator[None]:
    """What the sandbox finds wrong with a path, as wrong with the field that it stands in."""
    try:
        yield
    except Invalid as exc:
        below = f"{row.spec['backend'].get('workdir', '/workspace')}/"
        names = [name for name in move if str(move[name]).startswith("/") and not str(move[name]).startswith(below)]
        field = names[0] if names else "source"
        exc.errors = [FieldError(field, one.message) if one.field == "path" else one for one in exc.errors]
        raise


def etags(header: str | None) -> list[str] | None:
    """The ETags of an `If-Match` or `If-None-Match`; None without one."""
    if header is None:
        return None
    return [part.strip().removeprefix("W/").strip('"') for part in header.split(",")][:MAX_ETAGS]


def only_new(request: Request) -> bool:
    header = request.headers.get("If-None-Match")
    if header not in (None, "*"):
        raise Invalid("If-None-Match is not valid.", errors=[FieldError("If-None-Match", "must be *")])
    return header == "*"


def _refuse_too_large(row: Workspace, request: Request, data: bytes | AsyncIterator[bytes]) -> None:
    """Of a dry write: `DiskFull` for a file that the workspace's disk could not hold were it empty."""
    disk = access.facts_of(row).disk_bytes
    size = len(data) if isinstance(data, bytes) else _size_of(request._request)
    if disk and size > disk:
        raise DiskFull(f"The file has {size} bytes, and the disk of this workspace {disk}.")


def _size_of(stream: Any) -> int:
    """The bytes of a large body, of which `raw_body` has read the first piece."""
    return SMALL_BODY + 1 + sum(len(piece) for piece in iter(lambda: stream.read(PIECE), b""))


def raw_body(request: Request) -> bytes | AsyncIterator[bytes]:
    """The body as it is. Not `request.data`: that takes a body that came in chunks, without a length, for an empty one."""
    stream: Any = request._request
    first = stream.read(SMALL_BODY + 1)
    return first if len(first) <= SMALL_BODY else _pieces(first, stream)


async def _pieces(first: bytes, stream: IO[bytes]) -> AsyncIterator[bytes]:
    yield first
    try:
        while piece := await asyncio.to_thread(stream.read, PIECE):  # the spool is a file: not on the loop
            yield piece
    except ValueError:  # a closed file
        raise Unavailable("The client went away while its file was being written.") from None


def text_of(data: bytes, truncated: bool) -> str:
    """The text of a file, cut at a character's border where the read was; `NotText` when it is not UTF-8."""
    _, text = Decoder().feed(data, final=not truncated)
    if text is None:
        raise NotText
    return text
