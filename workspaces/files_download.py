"""Downloads: a file with ranges and preconditions, a directory as tar; neither is ever whole in this process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from django.http import HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request

from primer_site import loop
from primer_site.errors import Invalid, PreconditionFailed
from primer_site.problems import respond
from workspaces.archive import archive
from workspaces.execution import FileInfo
from workspaces.files_api import KNOWN, PATH, FileView, etags
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import IsADirectory, LinkRefused, NotAFile, ProtocolError
from workspaces.sandbox_files import FileStream, TreeStream
from workspaces.streaming import on_loop

RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
TAR = "application/x-tar"
BYTES = "application/octet-stream"


class RangeNotSatisfiable(Invalid):
    """The file has no bytes in that range."""

    code, status = "invalid", 416


@dataclass(frozen=True, slots=True)
class Range:
    """What was asked for, as the sandbox takes it: a negative offset counts from the end, a limit of 0 is never satisfied."""

    offset: int
    limit: int | None


class Download(StreamingHttpResponse):
    """A body out of the sandbox. Closing it ends the transfer there, also when nobody ever began to read it."""

    def __init__(self, stream: FileStream | TreeStream, name: str, *, tar: bool = False, status: int = 200) -> None:
        self._stream = stream
        body = archive(stream.chunks) if tar else stream.chunks
        super().__init__(on_loop(body), status=status, content_type=TAR if tar else BYTES, headers=headers_of(name))

    def close(self) -> None:
        super().close()
        loop.spawn(self._stream.chunks.aclose(), name="end a download")


class FileDownloadView(FileView):
    @extend_schema(
        parameters=[
            PATH,
            KNOWN,
            OpenApiParameter("Range", OpenApiTypes.STR, OpenApiParameter.HEADER, description="One range of bytes."),
            OpenApiParameter("If-Range", OpenApiTypes.STR, OpenApiParameter.HEADER, description="The range's ETag."),
        ],
        responses={
            (200, BYTES): OpenApiTypes.BINARY,
            (200, TAR): OpenApiTypes.BINARY,
            (206, BYTES): OpenApiTypes.BINARY,
            304: OpenApiResponse(None, "You have it: the ETag in If-None-Match is that of the file."),
        },
    )
    def get(self, request: Request, id: str) -> HttpResponse | StreamingHttpResponse:
        """The bytes of a regular file of any size, with `Range`; a directory (`.` is all of it) as a tar archive.

        The archive holds regular files and directories; its last member is `./`, whose pax comment names in JSON what was
        left out (links, devices, what cannot be read) and which files changed while they were read.
        A file that changes while it is sent breaks off before its announced end, one that only grows does not: go on with
        `Range` and the ETag in `If-Range`, which gives the rest, or all of the new version.
        """
        row, path = self.workspace(request, id, "path"), self.place(request)
        asked = range_of(request.headers.get("Range", ""))
        if_range = single_etag(request.headers.get("If-Range")) if asked is not None else None

        async def open_it(box: Sandbox) -> FileStream | TreeStream:
            if path:
                try:
                    start, limit = (asked.offset, asked.limit) if asked is not None else (0, None)
                    return await box.read_stream(path, offset=start, limit=limit, if_range=if_range)
                except IsADirectory:
                    pass
            return await box.pack(path)

        stream = self.sandbox(row, open_it)
        if isinstance(stream, TreeStream):
            return Download(stream, f"{stream.info.name or row.slug}.tar", tar=True)
        if if_range is not None and if_range != stream.info.etag:
            asked = None
        return file_answer(request, stream, asked)

    def head(self, request: Request, id: str) -> HttpResponse:
        """What a GET without a range would say of itself."""
        row, path = self.workspace(request, id, "path"), self.place(request)
        info = self.sandbox(row, lambda box: box.stat(path, etag=True))
        if info.kind == "symlink":
            raise LinkRefused
        if info.kind == "other":
            raise NotAFile
        if info.kind == "dir":
            return HttpResponse(content_type=TAR, headers=headers_of(f"{info.name or row.slug}.tar"))
        headers = headers_of(info.name) | file_headers(info) | {"Content-Length": str(info.size_bytes)}
        return HttpResponse(content_type=BYTES, headers=headers)

    def place(self, request: Request) -> str:
        """The path of a file or directory; "" for the workspace itself, which has to be asked for by `.` or `/`."""
        given = self.query(request).get("path", "")
        return self.path(request, root=bool(given)) if given.strip("/") in ("", ".") else self.path(request)


def file_answer(request: Request, stream: FileStream, asked: Range | None) -> HttpResponse | StreamingHttpResponse:
    """The answer for an opened file; one without its bytes ends the transfer."""
    info, last = stream.info, stream.offset + stream.length - 1
    if (other := instead(request, stream, asked)) is not None:
        loop.spawn(stream.chunks.aclose(), name="end a download")
        return other
    if asked is None and stream.length != info.size_bytes:
        raise ProtocolError("The runtime of this sandbox is too old for this call.")
    answer = Download(stream, info.name, status=200 if asked is None else 206)
    headers = file_headers(info) | {"Content-Length": str(stream.length)}
    if asked is not None:
        headers["Content-Range"] = f"bytes {stream.offset}-{last}/{info.size_bytes}"
    for name, value in headers.items():
        answer.headers[name] = value
    return answer


def instead(request: Request, stream: FileStream, asked: Range | None) -> HttpResponse | None:
    """The answer where preconditions, or a range that the file does not have, forbid the usual one."""
    etag, size = stream.info.etag, stream.info.size_bytes
    wanted, known = etags(request.headers.get("If-Match")), etags(request.headers.get("If-None-Match"))
    if wanted is not None and "*" not in wanted and etag not in wanted:
        return respond(request._request, PreconditionFailed("The file was changed since you read it."))
    if known is not None and ("*" in known or etag in known):
        return HttpResponse(status=304, headers=file_headers(stream.info))
    if asked is not None and stream.length == 0:
        answer = respond(request._request, RangeNotSatisfiable(f"The file has {size} bytes."))
        answer.headers["Content-Range"] = f"bytes */{size}"
        return answer
    return None


def range_of(header: str) -> Range | None:
    """The one range of a `Range` header; None (everything) for none, for several, for units we do not know, and for one that
    ends before it begins: what is no valid range is ignored."""
    match = RANGE.fullmatch(header.replace(" ", ""))
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = match.groups()
    if first == "":
        return Range(-int(last), None) if int(last) else Range(0, 0)
    if last and int(last) < int(first):
        return None
    return Range(int(first), int(last) - int(first) + 1 if last else None)


def single_etag(header: str | None) -> str | None:
    """The ETag of an `If-Range`; "", which no file has, for a date or a weak one: neither proves that bytes are the same."""
    if header is None:
        return None
    header = header.strip()
    return header.strip('"') if header.startswith('"') else ""


def file_headers(info: FileInfo) -> dict[str, str]:
    return {"Accept-Ranges": "bytes"} | ({"ETag": f'"{info.etag}"'} if info.etag else {})


def headers_of(name: str) -> dict[str, str]:
    """Never shown inline, never interpreted: the content is somebody's program's."""
    return {
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(name, safe='', errors='replace')}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
