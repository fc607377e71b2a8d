"""HTTP to one server: retries, redirects, size and time limits, and problems turned into errors."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from cli.causes import BAD_CA, HINTS, reason, unsent
from cli.config import is_loopback
from cli.errors import RESTARTING, ApiError, CliError, Exit, Unreachable, UsageError
from cli.invoked import command
from cli.masking import masked_body
from cli.patience import Patience, Tries
from cli.wire import encoded, is_json, media_type, wire

if TYPE_CHECKING:
    import requests

MAX_JSON = 64 * 1024 * 1024
PAGE = 100
FILES_PAGE = 1000  # the most: each page reads its directory from the start
_RETRY_STATUS = (429, 502, 503, 504)
_REDIRECTS = 5
_SECRET_HEADERS = ("authorization", "cookie", "set-cookie", "idempotency-key")


@dataclass(frozen=True, slots=True)
class Reply:
    """A success: `body` is the JSON value (None without one).

    `assumed`: a DELETE that was sent again found nothing, so that the one whose answer was lost is taken to have done it.
    """

    status: int
    body: Any
    etag: str = ""
    date: str = ""
    assumed: bool = False

    @property
    def object(self) -> dict[str, Any]:
        if not isinstance(self.body, dict):
            raise not_primer("an object was due")
        return self.body

    @property
    def items(self) -> list[dict[str, Any]]:
        items = self.object.get("items")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise not_primer("a list was due")
        return items


def not_primer(what: str) -> Unreachable:
    """The server answers, but not as one of ours would."""
    return Unreachable(f"this is not a Primer API: {what}", code="not_primer")


class _Cut(Unreachable):
    """The answer broke off in its middle."""


@dataclass
class Client:
    """Calls to `server`, each within `timeout_s` seconds from connect to last byte; `trace` gets a line per call."""

    server: str
    token: str = ""
    token_note: str = ""
    verify: bool | str = True
    timeout_s: float = 30.0
    verbose: int = 0
    trace: Callable[[str], None] = lambda line: None
    patience: Patience = field(default_factory=Patience)
    _session: Any = field(default=None, repr=False)

    def get(self, path: str, /, **params: Any) -> Reply:
        return self.call("GET", path, params=params)

    def post(self, path: str, body: Any = None, /, *, key: str = "", **params: Any) -> Reply:
        """A POST under one idempotency key, so that a retry is not a second order."""
        return self.call("POST", path, params=params, body=body, headers={"Idempotency-Key": key or new_key()})

    def post_once(self, path: str, body: Any = None) -> Reply:
        """A POST whose answer holds a secret: no key, no retry."""
        return self.call("POST", path, body=body, retry=False)

    def put(self, path: str, body: Any, /, *, headers: Mapping[str, str] | None = None, **params: Any) -> Reply:
        return self.call("PUT", path, params=params, body=body, headers=headers)

    def delete(self, path: str, /, **params: Any) -> Reply:
        return self.call("DELETE", path, params=params)

    def pages(self, path: str, /, limit: int = 0, size: int = PAGE, **params: Any) -> Iterator[dict[str, Any]]:
        """Items of a list in order, following cursors, `size` at a time; `limit` 0 is all of them."""
        cursor, count = None, 0
        while True:
            asked = min(size, limit - count) if limit else size
            reply = self.get(path, limit=asked, cursor=cursor, **params)
            items = reply.items
            yield from items[: limit - count] if limit else items
            count += len(items)
            following = reply.object.get("next_cursor")
            if not following or not items or following == cursor or (limit and count >= limit):
                return
            cursor = following

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        retry: bool = True,
    ) -> Reply:
        """One JSON call. Bytes as `body` go out raw. Raises ApiError for a problem, Unreachable without an answer.

        A DELETE that is sent again and then finds nothing has done its work the first time: a success, told with a note.
        """
        tries = Tries(self.patience, repeatable=retry and method == "GET")
        while True:
            try:
                response, again = self.send(method, path, params=params, body=body, headers=headers, retry=retry)
                with response:
                    took_s = response.elapsed.total_seconds()  # of this try, without the waits before it
                    raw = self._read(response, time.monotonic() + self.timeout_s - took_s)
                break
            except Unreachable as exc:
                # Those that never began have been repeated by `send`.
                again = isinstance(exc, _Cut) or (exc.code == "timeout" and self.patience.waiting)
                if not again or not tries.again(exc.lines[0], away=True):
                    raise
        if self.verbose > 1:
            self.trace(f"< {masked_body(raw)}")
        value = self._json(response, raw)
        if again and method == "DELETE" and response.status_code == 404:
            self.note_assumed()
            return Reply(204, None, assumed=True)
        if response.status_code >= 400:
            raise self._problem(response, value, again)
        return Reply(response.status_code, value, response.headers.get("ETag", ""), response.headers.get("Date", ""))

    def note_assumed(self) -> None:
        self.patience.note("note: an earlier try's answer was lost; it is not there now")

    def open(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float | None = None,
        retry: bool = True,
    ) -> requests.Response:
        """A response to read piece by piece; the caller closes it. Problems raise as in `call`.

        `silence_s` is the longest wait between two pieces, in place of the limit of the whole call.
        """
        response, again = self.send(
            method, path, params=params, body=body, headers=headers, silence_s=silence_s, retry=retry
        )
        if response.status_code >= 400:
            with response:
                raw = self._read(response, time.monotonic() + self.timeout_s)
            raise self._problem(response, self._json(response, raw), again)
        return response

    def body_of(self, response: requests.Response) -> Any:
        """The JSON value of an opened response."""
        return self._json(response, self._read(response, time.monotonic() + self.timeout_s))

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        retry: bool = True,
        silence_s: float | None = None,
    ) -> tuple[requests.Response, bool]:
        """Sends until an answer comes that is worth reading: retries what is safe to repeat, follows what is ours.

        Returns the answer, and whether an earlier try without one may have been carried out.
        """
        import requests

        tries, again = Tries(self.patience, repeatable=retry), False
        while True:
            try:
                response = self._once(
                    method, path, params=params or {}, body=body, headers=dict(headers or {}), silence_s=silence_s
                )
            except (requests.ConnectionError, requests.Timeout) as exc:
                failure = self._no_answer(exc)
                # One that took a part of a file was there, whether it has answered before or not.
                self.patience.reached = self.patience.reached or bool(getattr(body, "sent", 0))
                # A server that took the request and is silent has had its time; a certificate does not get better.
                final = isinstance(exc, requests.ReadTimeout | requests.exceptions.SSLError)
                failure.code = "timeout" if isinstance(exc, requests.ReadTimeout) else failure.code
                if final or not tries.again(failure.lines[0], away=True):
                    raise failure from exc
                again = again or not unsent(exc)
                continue
            except requests.RequestException as exc:
                raise self._no_answer(exc) from exc
            except ValueError as exc:  # requests reads a Location also where it is not to follow it
                raise not_primer("it redirects to what is no address") from exc
            away = response.status_code in RESTARTING and not is_json(response)
            if not away:
                self.patience.answered()
            if response.status_code not in _RETRY_STATUS:
                return response, again
            why, after = f"{self.server} answers {response.status_code}", response.headers.get("Retry-After", "")
            if not tries.again(why, away=away, retry_after=after):
                return response, again
            # Neither a proxy that lost its server nor who gave up waiting knows what became of it; any other has refused
            # it, and a proxy that says 503 had nobody to give it to.
            again = again or response.status_code == 504 or (away and response.status_code == 502)
            response.close()

    def _once(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any],
        body: Any,
        headers: dict[str, str],
        silence_s: float | None,
    ) -> requests.Response:
        url = self.server + path
        data, headers = encoded(body, headers)
        given: Any = {k: wire(v) if isinstance(v, str) else v for k, v in params.items() if v is not None}
        for _ in range(_REDIRECTS):
            response = self._exchange(method, url, params=given, data=data, headers=headers, silence_s=silence_s)
            if response.status_code not in (301, 302, 303, 307, 308):
                return response
            response.close()
            target = self._redirected(method, response.url or url, response.headers.get("Location", ""))
            url, given = target, None
        raise not_primer("it redirects in circles")

    def _redirected(self, method: str, url: str, location: str) -> str:
        """Where a redirect leads, as long as it is a GET that stays on our server."""
        try:
            target = urljoin(url, location)
            origin = _origin(target)
        except ValueError as exc:
            raise not_primer("it redirects to what is no address") from exc
        if method != "GET" or origin != _origin(self.server):
            raise Unreachable(
                f"{_origin(self.server)} redirects to {origin}; nothing was sent there",
                hint=f"if that is your server: --server {origin}",
                code="redirect",
            )
        return target

    def _exchange(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, Any] | None,
        data: Any,
        headers: dict[str, str],
        silence_s: float | None,
    ) -> requests.Response:
        started = time.monotonic()
        # allow_redirects is off: a redirect must not decide where the token goes.
        response: requests.Response = self.session.request(
            method,
            url,
            params=params,
            data=data,
            headers=headers,
            timeout=(self.timeout_s, silence_s or self.timeout_s),
            verify=self.verify,
            stream=True,
            allow_redirects=False,
        )
        if self.verbose:
            took = (time.monotonic() - started) * 1000
            request_id = response.headers.get("X-Request-ID", "-")
            self.trace(f"{method} {response.url} {response.status_code} {took:.0f} ms (request id {request_id})")
        if self.verbose > 1:
            sent = {**self.session.headers, **headers, "Authorization": "Bearer ****" if self.token else "-"}
            for mark, found in ((">", sent), ("<", response.headers)):
                for name, value in found.items():
                    hidden = name.lower() in _SECRET_HEADERS
                    self.trace(f"{mark} {name}: {'****' if hidden and value != '-' else value}")
            if data:
                self.trace(f"> {masked_body(data) if isinstance(data, bytes) else f'({len(data)} bytes)'}")
        return response

    @property
    def session(self) -> Any:
        if self._session is None:
            import requests

            self._session = requests.Session()
            # Our own auth object keeps ~/.netrc out; a proxy has no business between us and loopback.
            self._session.auth = self._authorize
            self._session.trust_env = not is_loopback(self.server)
            self._session.headers.update({"User-Agent": "primectl", "Accept": "application/json"})
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _authorize(self, request: Any) -> Any:
        if self.token:
            request.headers["Authorization"] = f"Bearer {self.token}"
        return request

    def _read(self, response: requests.Response, deadline: float) -> bytes:
        import requests

        pieces, total = [], 0
        try:
            for piece in response.iter_content(64 * 1024):
                total += len(piece)
                if total > MAX_JSON:
                    raise not_primer("the answer is larger than 64 MiB")
                if time.monotonic() > deadline:
                    raise Unreachable(
                        f"{self.server} did not finish its answer within {self.timeout_s:g} s",
                        hint="allow more with --request-timeout",
                        code="timeout",
                    )
                pieces.append(piece)
        except requests.RequestException as exc:
            raise _Cut(*self._no_answer(exc).lines) from exc
        return b"".join(pieces)

    def _json(self, response: requests.Response, raw: bytes) -> Any:
        if not raw:
            return None
        if not is_json(response):
            kind = media_type(response)
            if response.status_code >= 500:
                return {}
            raise not_primer(f"got {kind or 'no content type'}")
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as exc:
            raise not_primer("the answer is not JSON") from exc

    def _problem(self, response: requests.Response, value: Any, again: bool) -> CliError:
        problem = value if isinstance(value, dict) else {}
        if response.status_code == 401:
            return self.not_logged_in(str(problem.get("request_id") or ""))
        return ApiError(response.status_code, problem, retry_after=response.headers.get("Retry-After", ""), again=again)

    def not_logged_in(self, request_id: str = "") -> CliError:
        line = f"the token is not valid on {self.server}" if self.token else f"not logged in to {self.server}"
        lines = [line, *([self.token_note] if self.token_note else [])]
        return CliError(
            *lines,
            exit=Exit.DENIED,
            hint=f"primectl login {self.server}",
            code="unauthenticated",
            request_id=request_id,
        )

    def _no_answer(self, exc: Exception) -> CliError:
        if isinstance(exc, OSError) and any(mark in str(exc) for mark in BAD_CA):
            return UsageError(f"the CA file holds no certificate in PEM: {self.verify}")
        why = reason(exc)
        hint = HINTS.get(why, "")
        if not hint and is_loopback(self.server):
            hint = f"start it with: {command('primer')} up"
        return Unreachable(f"cannot reach {self.server}: {why}", hint=hint)


def new_key() -> str:
    return os.urandom(16).hex()


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
