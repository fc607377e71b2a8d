"""Routes of files: the runtime in the sandbox does the work, with the sandbox's own rights; here bytes and errors pass."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import IO, Any, TypeVar
from urllib.parse import parse_qsl, quote

from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.views import APIView

from accounts.permissions import require_change
from accounts.rest import StrictSerializer, is_dry, request_user
from primer_site import loop
from primer_site.errors import FieldError, Invalid, NotText, PreconditionFailed
from primer_site.pagination import whole_number
from primer_site.parsing import StrictJSONParser
from workspaces import access, services
from workspaces.exec_api import AnyAccept, only, visible_workspace
from workspaces.execution import MIB, FileInfo
from workspaces.fields import ModeField, PathField, decode_base64, path_problem
from workspaces.models import Workspace
from workspaces.output import Decoder
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import FileMissing, IsADirectory
from workspaces.sandbox_files import FileStream
from workspaces.streaming import on_loop

T = TypeVar("T")
CALL_S = 60.0
UPLOAD_S = 900.0
PIECE = 256 * 1024
SMALL_BODY = 1 * MIB  # sent from memory, and again over a new channel when the old one breaks
PAGE, MAX_PAGE = 200, 1000
READ, MAX_READ = 1 * MIB, 16 * MIB
RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
ETAG = OpenApiParameter("If-Match", OpenApiTypes.STR, OpenApiParameter.HEADER)
NONE = OpenApiParameter("If-None-Match", OpenApiTypes.STR, OpenApiParameter.HEADER, description="`*`: only if new.")
PATH = OpenApiParameter("path", str, required=True, description="Relative to the workspace, or absolute below it.")


class FileSerializer(StrictSerializer):
    path = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(["file", "dir", "symlink", "other"])
    size_bytes = serializers.IntegerField()
    modified_at = serializers.DateTimeField()
    mode = serializers.CharField()


class FileListSerializer(StrictSerializer):
    items = FileSerializer(many=True)
    next_cursor = serializers.CharField(allow_null=True)


class FileContentSerializer(StrictSerializer):
    path = serializers.CharField()
    encoding = serializers.ChoiceField(["text", "base64"])
    content = serializers.CharField()
    size_bytes = serializers.IntegerField()
    modified_at = serializers.DateTimeField()
    etag = serializers.CharField(allow_null=True)
    truncated = serializers.BooleanField()


class WriteSerializer(StrictSerializer):
    content = serializers.CharField(allow_blank=True, trim_whitespace=False)
    encoding = serializers.ChoiceField(["text", "base64"], default="text")
    mode = ModeField(default=0o644)


class DirSerializer(StrictSerializer):
    path = PathField()
    parents = serializers.BooleanField(default=True)


class MoveSerializer(StrictSerializer):
    source = PathField()  # type: ignore[assignment]
    target = PathField()
    overwrite = serializers.BooleanField(default=False)


class RawParser(BaseParser):
    """The body itself, unread: a file goes from the spool to the sandbox in pieces."""

    media_type = "application/octet-stream"

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream


def shown(info: FileInfo) -> dict[str, Any]:
    return {
        "path": info.path, "name": info.name, "kind": info.kind, "size_bytes": info.size_bytes,
        "modified_at": when(info.modified_at), "mode": f"{info.mode:04o}",
    }  # fmt: skip


def when(seconds: float) -> str:
    """RFC 3339; a file may carry any time at all."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return "1970-01-01T00:00:00Z"


def answer(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> JsonResponse:
    """JSON in ASCII: names that are not UTF-8 travel as lone surrogates, which no UTF-8 text may hold."""
    return JsonResponse(body, status=status, headers=headers)


class FileView(APIView):
    """What every file route does first: the workspace, the right to it, the path."""

    content_negotiation_class = AnyAccept

    def workspace(self, request: Request, id: str, *known: str, write: bool = False) -> Workspace:
        """The workspace; `known` are the query parameters of the route, and others are refused."""
        row = visible_workspace(request, id)
        only(request, *known, *(["dry_run"] if write else []))
        if write:
            require_change(request_user(request), row, request.auth)
            if is_dry(request):
                raise Invalid(
                    "A change of a file cannot be tried without doing it: rights, space and what is there decide.",
                    errors=[FieldError("dry_run", "is not supported by routes of files")],
                )
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
        return loop.run(access.using(row.pk, work), timeout)


class FilesView(FileView):
    parser_classes = (StrictJSONParser, RawParser)

    @extend_schema(
        parameters=[
            OpenApiParameter("path", str), OpenApiParameter("recursive", bool),
            OpenApiParameter("cursor", str), OpenApiParameter("limit", int),
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
        responses={204: OpenApiResponse(None, "Written; the ETag is of the new content.")},
    )
    def put(self, request: Request, id: str) -> HttpResponse:
        """Writes a whole file at once, or leaves the old one."""
        row, path = self.workspace(request, id, "path", "mode", write=True), self.path(request)
        etag, only_new = preconditions(request)
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
        work = write(path, data, mode, etag, only_new)
        info = self.sandbox(row, work, UPLOAD_S)
        return HttpResponse(status=204, headers={"ETag": f'"{info.etag}"'} if info.etag else {})

    @extend_schema(parameters=[PATH, OpenApiParameter("recursive", bool)], responses={204: None})
    def delete(self, request: Request, id: str) -> HttpResponse:
        """Removes a file, a link itself, or a directory (`recursive` when it is not empty)."""
        row, path = self.workspace(request, id, "path", "recursive", write=True), self.path(request)
        recursive = self.flag(request, "recursive")
        self.sandbox(row, lambda box: box.delete(path, recursive=recursive), 2 * CALL_S)
        return HttpResponse(status=204)


class FileReadView(FileView):
    @extend_schema(
        parameters=[
            PATH, OpenApiParameter("encoding", str, enum=["text", "base64"]),
            OpenApiParameter("offset", int), OpenApiParameter("limit", int),
        ],
        responses={200: FileContentSerializer},
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
        content = (
            base64.b64encode(found.data).decode() if encoding == "base64" else text_of(found.data, found.truncated)
        )
        body = {"path": info.path, "encoding": encoding, "content": content, "size_bytes": info.size_bytes}
        body |= {"modified_at": when(info.modified_at), "etag": info.etag, "truncated": found.truncated}
        return answer(body, headers={"ETag": f'"{info.etag}"'} if info.etag else {})


class FileDownloadView(FileView):
    @extend_schema(parameters=[PATH], responses={(200, "application/octet-stream"): OpenApiTypes.BINARY})
    def get(self, request: Request, id: str) -> HttpResponse | StreamingHttpResponse:
        """The bytes of a regular file of any size, with `Range`."""
        row, path = self.workspace(request, id, "path"), self.path(request)
        try:
            info = self.sandbox(row, lambda box: box.stat(path))
            start, end = byte_range(request.headers.get("Range", ""), info.size_bytes)
            stream = self.sandbox(row, lambda box: box.read_stream(path, offset=start, limit=end - start))
        except IsADirectory:
            message = "leads to a directory: list it, and download its files one by one"
            raise Invalid(
                "A directory cannot be downloaded as one file yet.", errors=[FieldError("path", message)]
            ) from None
        return download(stream, partial=(start, end) != (0, info.size_bytes))


class FileDirView(FileView):
    @extend_schema(request=DirSerializer, responses={201: FileSerializer})
    def post(self, request: Request, id: str) -> HttpResponse:
        """Makes a directory, and with `parents` what is missing above it."""
        row = self.workspace(request, id, write=True)
        body = DirSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        path, parents = body.validated_data["path"], body.validated_data["parents"]
        return answer(shown(self.sandbox(row, lambda box: box.mkdir(path, parents=parents))), 201)


class FileMoveView(FileView):
    @extend_schema(request=MoveSerializer, responses={200: FileSerializer})
    def post(self, request: Request, id: str) -> HttpResponse:
        """Renames a file or a directory within the workspace."""
        row = self.workspace(request, id, write=True)
        body = MoveSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        source, target, overwrite = (body.validated_data[name] for name in ("source", "target", "overwrite"))
        return answer(shown(self.sandbox(row, lambda box: box.move(source, target, overwrite=overwrite))))


# -- small steps


def preconditions(request: Request) -> tuple[str | None, bool]:
    """(the ETag that must still hold, whether the file must be new)."""
    etag = request.headers.get("If-Match")
    only_new = request.headers.get("If-None-Match")
    if only_new not in (None, "*"):
        raise Invalid("If-None-Match is not valid.", errors=[FieldError("If-None-Match", "must be *")])
    return (etag.strip().removeprefix("W/").strip('"') if etag else None), only_new == "*"


def write(
    path: str, data: bytes | AsyncIterator[bytes], mode: int, etag: str | None, only_new: bool
) -> Callable[[Sandbox], Awaitable[FileInfo]]:
    async def work(box: Sandbox) -> FileInfo:
        expected = etag
        if etag == "*":  # it must exist, whatever is in it
            try:
                expected = (await box.stat(path, etag=True)).etag
            except FileMissing:
                raise PreconditionFailed("The file does not exist.") from None
        return await box.write(path, data, mode=mode, if_match=expected, if_none_match=only_new)

    return work


def raw_body(request: Request) -> bytes | AsyncIterator[bytes]:
    stream: Any = request.data
    if not hasattr(stream, "read"):  # an empty body is no stream at all
        return b""
    first = stream.read(SMALL_BODY + 1)
    return first if len(first) <= SMALL_BODY else _pieces(first, stream)


async def _pieces(first: bytes, stream: IO[bytes]) -> AsyncIterator[bytes]:
    yield first
    while piece := await asyncio.to_thread(stream.read, PIECE):  # the spool is a file: not on the loop
        yield piece


def text_of(data: bytes, truncated: bool) -> str:
    """The text of a file, cut at a character's border where the read was; `NotText` when it is not UTF-8."""
    _, text = Decoder().feed(data, final=not truncated)
    if text is None:
        raise NotText
    return text


class RangeNotSatisfiable(Invalid):
    """The file has no bytes in that range."""

    code, status = "invalid", 416


def byte_range(header: str, size: int) -> tuple[int, int]:
    """[start, end) of a single `Range`; the whole file without one, or for what we do not know."""
    match = RANGE.fullmatch(header.replace(" ", ""))
    if match is None or match.group(1) == match.group(2) == "":
        return 0, size
    first, last = match.groups()
    if first == "":
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
    if start >= end:
        raise RangeNotSatisfiable(f"The file has {size} bytes.")
    return start, end


def download(stream: FileStream, *, partial: bool) -> StreamingHttpResponse:
    """Never shown inline, never interpreted: the content is somebody's program's."""
    headers = {
        "Content-Length": str(stream.length),
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(stream.info.name, safe='', errors='replace')}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-store",
    }
    if partial:
        last = stream.offset + stream.length - 1
        headers["Content-Range"] = f"bytes {stream.offset}-{last}/{stream.info.size_bytes}"
    return StreamingHttpResponse(
        on_loop(stream.chunks), status=206 if partial else 200, content_type="application/octet-stream", headers=headers
    )
