"""A small Primer for the client's tests: the routes of the API over real sockets, scripted, and hostile where asked."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.cli.stored_env import with_stored_env

TOKEN = "secret-token-0123456789"
WS = "ws-1a2b3c4d5e6f7081"
SESS = "sess-4be0c1d2e3f40516"
NOW = "2026-02-01T10:00:00Z"
PLURALS = {
    "workspace_providers": "workspace_provider",
    "workspace_templates": "workspace_template",
    "workspaces": "workspace",
    "sessions": "session",
    "agents": "agent",
    "llm_providers": "llm_provider",
}


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    """`body` bytes go out as they are, anything else as JSON; `pieces` are written one by one; `cut` ends in the middle."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] | None = None
    cut: bool = False


def problem(status: int, code: str, detail: str = "", **more: Any) -> Answer:
    body = {"type": "about:blank", "title": code, "status": status, "code": code, "detail": detail or code, **more}
    return Answer(status, body, {"Content-Type": "application/problem+json"})


def not_found() -> Answer:
    return problem(404, "not_found", "There is no such object.", request_id="7f3a9c12")


Responder = Callable[[Request], Answer]


class Primer:
    """State and routes; `on` puts a responder in front of a route, `requests` is what came in."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.rules: list[tuple[str, str, Responder]] = []
        self.store: dict[str, dict[str, dict[str, Any]]] = {plural: {} for plural in PLURALS}
        self.store["llm_providers"]["scripted"] = {
            "id": "scripted",
            "provider": "scripted",
            "config": {"kind": "scripted"},
        }
        self.versions: dict[str, int] = {}
        self.files: dict[str, bytes] = {}
        self.events: list[dict[str, Any]] = []
        self.frames: Callable[[int], list[Any]] | None = None
        self.ending: dict[str, Any] = {"ended_reason": "completed", "answer": "The snippet printed 42."}
        self.boots_after = 1  # looks at a workspace until it runs
        self.gone_after = 1  # looks at a deleted one until it is gone
        self.deleting: dict[str, int] = {}
        self.exec_lines: list[dict[str, Any]] = []
        self.exec_output: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self.exec_result: dict[str, Any] = {}
        self.cut_exec = False

    def on(self, method: str, path: str, responder: Responder | Answer) -> None:
        self.rules.insert(0, (method, path, responder if callable(responder) else lambda request: responder))

    def sent(self, method: str, path: str) -> list[Request]:
        return [r for r in self.requests if r.method == method and r.path == path]

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        for method, path, responder in self.rules:
            if method == request.method and path == request.path:
                return responder(request)
        if request.path in ("/healthz", "/readyz"):
            return Answer(200, {"status": "ok"})
        if request.path == "/v1/auth/login":
            return self._login(request)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return problem(401, "unauthenticated")
        return self._route(request)

    def _login(self, request: Request) -> Answer:
        if request.json["password"] != "right":
            return problem(401, "unauthenticated")
        return Answer(200, {"token": TOKEN, "expires_at": None})

    def _route(self, request: Request) -> Answer:
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        match (request.method, parts[1:]):
            case ("GET", ["me"]):
                token = {"name": "cli", "scope": "write", "expires_at": None}
                return Answer(200, {"username": "alice", "role": "member", "token": token})
            case ("GET", ["capabilities"]):
                return Answer(200, {"version": "0.1.0"})
            case ("POST", ["auth", "logout"]):
                return Answer(204)
            case (_, [plural]) if plural in PLURALS:
                return self._list(request, plural) if request.method == "GET" else self._create(request, plural)
            case (_, [plural, name]) if plural in PLURALS:
                return self._one(request, plural, name)
            case (_, [plural, name, *rest]) if plural in PLURALS and name in self.store[plural]:
                return self._part(request, plural, name, rest)
        return not_found()

    def _list(self, request: Request, plural: str) -> Answer:
        wanted = [tuple(label.split("=", 1)) for label in request.query.get("label", [])]
        items = [i for i in self.store[plural].values() if all(pair in i.get("labels", {}).items() for pair in wanted)]
        start, limit = int(request.query.get("cursor", ["0"])[0]), int(request.query.get("limit", ["50"])[0])
        more = str(start + limit) if start + limit < len(items) else None
        return Answer(200, {"items": items[start : start + limit], "next_cursor": more, "total": len(items)})

    def _create(self, request: Request, plural: str) -> Answer:
        spec = request.json
        if request.query.get("dry_run") == ["true"]:
            made = {"workspaces": WS, "sessions": SESS}.get(plural)
            return Answer(201, {**spec, **({"id": made} if made else {})}, {"ETag": '"1.1"'})
        if plural == "agents" and spec["model"]["provider_id"] not in self.store["llm_providers"]:
            error = {"field": "model.provider_id", "message": f'no llm_provider "{spec["model"]["provider_id"]}"'}
            return problem(422, "invalid", errors=[error])
        item = {**spec, "created_at": NOW}
        if plural == "workspaces":
            item |= {"id": WS, "phase": "pending", "looks": 0}
            self.deleting.pop(WS, None)
        elif plural == "sessions":
            item |= {"id": SESS, "status": "queued", "last_seq": 1}
        elif spec["id"] in self.store[plural]:
            return problem(409, "conflict", "It exists.")
        self.store[plural][item["id"]] = item
        self.versions[item["id"]] = 1
        return Answer(201, item, {"ETag": '"1.1"'})

    def _one(self, request: Request, plural: str, name: str) -> Answer:
        item = self.store[plural].get(name)
        if item is None:
            return not_found()
        if request.method == "DELETE":
            self.deleting[name] = 0
            return Answer(202, item)
        etag = f'"{self.versions.get(name, 1)}.{item.get("looks", 1)}"'
        if request.method == "GET" and request.headers.get("if-none-match") == etag:
            return Answer(304, None, {"ETag": etag})
        if request.method in ("PUT", "PATCH"):
            body = request.json | with_stored_env(item, request.json, whole=request.method == "PUT")
            changed = any(item.get(key) != value for key, value in body.items())
            if request.query.get("dry_run") == ["true"]:
                return Answer(200, {**item, **body}, {"ETag": f'"{self.versions.get(name, 1) + changed}.1"'})
            item.update(body)
            self.versions[name] = self.versions.get(name, 1) + changed
        if name in self.deleting:
            self.deleting[name] += 1
            if self.deleting[name] >= self.gone_after:
                del self.store[plural][name]
                return not_found()
        if plural == "workspaces" and item.get("phase") == "pending":
            item["looks"] += 1
            if item["looks"] > self.boots_after:
                item |= {"phase": "running", "confinement": {"verdict": "proven", "checks": []}}
        return Answer(200, item, {"ETag": f'"{self.versions.get(name, 1)}.{item.get("looks", 1)}"'})

    def _part(self, request: Request, plural: str, name: str, rest: list[str]) -> Answer:
        match (request.method, rest):
            case ("POST", ["check"]) if plural == "workspace_providers":
                engine = {"version": "20.10.24"}
                status = {"health": "healthy", "engine": engine, "enforces": {"cpu": "enforced"}}
                return Answer(200, {"id": name, "status": status})
            case ("POST", ["check"]):
                limits = {"cpu": "enforced", "disk": "soft"}
                return Answer(200, {"image_present": False, "image_digest": "", "detail": "", "limits": limits})
            case ("POST", ["verify"]):
                return Answer(200, {"verdict": "degraded", "checks": [{"name": "engine_socket", "ok": True}]})
            case ("POST", ["start" | "stop" as verb]):
                self.store[plural][name]["phase"] = "running" if verb == "start" else "stopped"
                return Answer(202, self.store[plural][name])
            case ("POST", ["cancel"]):
                return self._cancel(name)
            case ("POST", ["messages"]):
                if self.store[plural][name]["status"] != "ended":
                    return problem(409, "conflict", "The session is running.")
                return Answer(202, {})
            case ("GET", ["events"]):
                after = int(request.query["after"][0])
                self.finish(name)
                return Answer(
                    200, {"items": [e for e in self.events if e["seq"] > after], "last_seq": len(self.events)}
                )
            case (_, ["files", *more]):
                return self._files(request, more)
            case ("POST", ["exec"]):
                return self._exec(request)
            case ("GET", ["exec", _]):
                return Answer(200, self.exec_result)
            case ("GET", ["exec", _, "output"]):
                return self._output(request)
            case ("DELETE", ["exec", _]):
                return Answer(204)
        return not_found()

    def finish(self, name: str) -> None:
        """The session's row as it is after its last event."""
        if self.events and self.events[-1]["kind"] == "session_ended":
            self.store["sessions"][name] |= {"status": "ended", "last_seq": len(self.events), **self.ending}

    def _cancel(self, name: str) -> Answer:
        self.ending = {"ended_reason": "cancelled", "answer": None}
        self.events.append(event(len(self.events) + 1, "session_ended", reason="cancelled"))
        self.finish(name)
        return Answer(202, self.store["sessions"][name])

    def _files(self, request: Request, rest: list[str]) -> Answer:
        path = request.query.get("path", [""])[0]
        match (request.method, rest):
            case ("GET", []):
                items = [{"path": p, "name": p, "kind": "file", "size_bytes": len(b)} for p, b in self.files.items()]
                return Answer(200, {"items": items, "next_cursor": None})
            case ("GET", ["download"]) if path in self.files:
                return Answer(200, self.files[path], {"Content-Type": "application/octet-stream"})
            case ("PUT", []):
                if request.headers.get("if-none-match") and path in self.files:
                    return problem(412, "precondition_failed")
                self.files[path] = request.body
                return Answer(204, None, {"ETag": '"x"'})
            case ("DELETE", []) if path in self.files:
                del self.files[path]
                return Answer(204)
            case ("POST", [_]):
                return Answer(204)
        return not_found()

    def _exec(self, request: Request) -> Answer:
        lines = [json.dumps(line).encode() + b"\n" for line in self.exec_lines]
        return Answer(200, None, {"Content-Type": "application/x-ndjson"}, pieces=lines, cut=self.cut_exec)

    def _output(self, request: Request) -> Answer:
        stream, offset = request.query["stream"][0], int(request.query["offset"][0])
        data = self.exec_output[stream][offset : offset + int(request.query["limit"][0])]
        encoded = base64.b64encode(data).decode()
        body = {"data": encoded, "encoding": "base64", "offset": offset, "next_offset": offset + len(data), "gap": None}
        return Answer(200, body)


def event(seq: int, kind: str, **data: Any) -> dict[str, Any]:
    return {"seq": seq, "ts": NOW, "kind": kind, "data": data}


def recipe_events() -> list[dict[str, Any]]:
    """What the recipe's session does, as a server tells it."""
    code = "print(6 * 7)\n"
    return [
        event(1, "session_status", status="queued"),
        event(2, "tool_call", call_id="a", name="workspace__write", arguments={"path": "snippet.py", "content": code}),
        event(3, "tool_result", call_id="a", ok=True, text="written"),
        event(4, "tool_call", call_id="b", name="workspace__exec", arguments={"argv": ["python", "snippet.py"]}),
        event(5, "tool_output", call_id="b", exec_id="e", stream="stdout", offset=0, text="42\n"),
        event(6, "tool_result", call_id="b", ok=True, exit_code=0, ended_by="exit", duration_ms=12),
        event(7, "text_delta", text="The snippet "),
        event(8, "text_delta", text="printed 42."),
        event(9, "assistant_message", text="The snippet printed 42."),
        event(10, "session_ended", reason="completed"),
    ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(
            self.command,
            parts.path,
            parse_qs(parts.query, keep_blank_values=True, errors="surrogateescape"),
            headers,
            body,
        )
        if parts.path.startswith("/ws/"):
            self._socket(request)
            return
        try:
            self._send(self.server.primer.answer(request))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def __getattr__(self, name: str) -> Any:
        """One handler for all methods: `do_GET` and its like."""
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _send(self, answer: Answer) -> None:
        raw = answer.body if isinstance(answer.body, bytes) else b""
        headers = dict(answer.headers)
        if answer.body is not None and not isinstance(answer.body, bytes):
            raw = json.dumps(answer.body).encode()
            headers.setdefault("Content-Type", "application/json")
        if answer.pieces is None:
            headers.setdefault("Content-Length", str(len(raw)))
        else:
            headers |= {"Transfer-Encoding": "chunked"}
        (self.send_response_only if "Date" in headers else self.send_response)(answer.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if answer.pieces is None:
            self.wfile.write(raw)
        for piece in answer.pieces or ():
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        if answer.cut:
            self.close_connection = True
        elif answer.pieces is not None:
            self.wfile.write(b"0\r\n\r\n")

    def _socket(self, request: Request) -> None:
        """The events socket, by hand: handshake, then what `frames(after)` says (dict: text, int: close code, None: cut)."""
        primer = self.server.primer
        primer.requests.append(request)
        self.close_connection = True
        if primer.frames is None:
            self.send_error(404)
            return
        key = request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.wfile.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: primer.v1.json\r\nSec-WebSocket-Accept: " + accept.encode() + b"\r\n\r\n"
        )
        for frame in primer.frames(int(request.query["after"][0])):
            if frame is None:
                return
            code, data = (8, struct.pack("!H", frame)) if isinstance(frame, int) else (1, json.dumps(frame).encode())
            if isinstance(frame, dict) and frame["kind"] == "session_ended":
                primer.finish(request.path.split("/")[4])
            length = bytes([len(data)]) if len(data) < 126 else b"\x7e" + struct.pack("!H", len(data))
            self.wfile.write(bytes([0x80 | code]) + length + data)
            self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, primer: Primer, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.primer = primer
        self.tls = tls

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        if self.tls is not None:  # the handshake is left to the thread: a refusal must not stop the others
            connection = self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves early is what many of these tests do."""


def start(tls: ssl.SSLContext | None = None) -> tuple[Primer, Server]:
    primer = Primer()
    server = Server(primer, tls)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return primer, server
