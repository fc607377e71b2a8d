"""What drivers that speak HTTP share: a client that connects to checked addresses only, and failures as our errors."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

import httpx2
import structlog

from agents.llm.address import Place, place_of, resolve
from agents.llm.base import (
    LLM,
    ContextTooLong,
    LLMConfig,
    LLMError,
    LLMEvent,
    LLMRequest,
    LLMUnavailable,
    TextDelta,
    ThinkingDelta,
    Waiting,
)
from agents.llm.failures import of_status, own_words, parts
from agents.llm.gate import DEFAULT_CONCURRENCY, in_line
from agents.redact import Redactor

TIMEOUT_S = 300.0  # without a byte of an answer: a model on a machine of one's own reads a long question for minutes
CONNECT_S = 10.0
WAIT_TOLD_S = 2.0  # for a place at the provider; who waits longer is told
ADDRESSES_S = 30.0  # for which an endpoint's addresses, once checked, are connected to without asking again
# The SDKs also send what they find in variables of the server (OPENAI_CUSTOM_HEADERS, OPENAI_ORG_ID, …) and what machine
# it is. Endpoints are chosen by people; the server's environment is not theirs.
NEEDED_HEADERS = frozenset(
    {"host", "accept", "accept-encoding", "connection", "content-type", "content-length", "user-agent", "anthropic-version"}
)  # fmt: skip
MAX_ANSWER_BYTES = 64 * 1024 * 1024
# Of text and thoughts, for each token that was asked for: the longest token of any model is shorter.
MAX_TOKEN_CHARS, SOME_CHARS = 64, 64 * 1024
MAX_LINE_BYTES = 4 * 1024 * 1024  # the SDKs join a line piece by piece
TOO_MUCH = "The model's endpoint sends more than any reply can be."
STRANGE = "The model's endpoint answers in a form that is not this kind of API."
BROKEN = "The connection to the model broke in the middle of its reply."
UNREACHED = "The model's endpoint cannot be reached."
UNANSWERED = "The model's endpoint closed the connection without an answer."
SLOW = "Try again later, or raise timeout_s of the LLM provider if the model is slow."
EVENT_STREAM = "text/event-stream"
WHERE = (
    "Check the provider's base_url and kind: base_url is the part of the API's address before /v1/messages (anthropic) or "
    "/chat/completions (openai)."
)
NOBODY = "Check that it runs, and the provider's base_url."
PERHAPS_OTHER = "Try again later; if it stays so, check the provider's base_url and kind."
_MEDIA = re.compile(r"[a-z0-9.+-]+/[a-z0-9.+-]+")
# What hostile bytes and shapes make of the SDK's reading and of ours: not JSON, not UTF-8, a list for an object.
STRANGE_SHAPES = (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError)
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How one provider is reached. `name` is the provider's id: it is what the limit of `places` is counted by."""

    base_url: str
    key: str = field(repr=False, default="")
    name: str = ""
    timeout_s: float = TIMEOUT_S
    places: int = DEFAULT_CONCURRENCY


class PinnedTransport(httpx2.AsyncBaseTransport):
    """Resolves a name itself, checks every address and connects to those: what the resolver says later changes nothing.

    `headers` are what the endpoint learns beside what a question needs; nothing else that an SDK adds leaves the server.
    """

    def __init__(self, place: Place, headers: dict[str, str]) -> None:
        self._place = place
        self._headers = headers
        self._addresses: list[str] = []  # checked ones; asked for again after ADDRESSES_S, or when none answers
        self._ask_again = 0.0
        # No proxy of the environment: it would make the connection that is checked here.
        self._inner = httpx2.AsyncHTTPTransport(verify=_tls(), trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if (request.url.host.lower(), request.url.port or self._place.port) != (self._place.host, self._place.port):
            raise LLMConfig("The model's endpoint leads to another host.")
        sent = {name: value for name, value in request.headers.items() if name in NEEDED_HEADERS} | self._headers
        failure: httpx2.ConnectError | None = None
        for address in await self._checked():
            pinned = httpx2.Request(
                request.method, request.url.copy_with(host=address), headers=sent, stream=request.stream,
                extensions={**request.extensions, "sni_hostname": self._place.host},
            )  # fmt: skip
            try:
                return await _bounded(await self._inner.handle_async_request(pinned))
            except httpx2.ConnectError as exc:
                failure = exc
        self._addresses = []
        raise failure or httpx2.ConnectError("no address", request=request)

    async def _checked(self) -> list[str]:
        now = asyncio.get_running_loop().time()
        if not self._addresses or now > self._ask_again:
            self._addresses, self._ask_again = await resolve(self._place), now + ADDRESSES_S
        return self._addresses

    async def aclose(self) -> None:
        await self._inner.aclose()


@cache
def _tls() -> ssl.SSLContext:
    """One for the process: loading the certificates takes tens of milliseconds."""
    return ssl.create_default_context()


async def _bounded(response: httpx2.Response) -> httpx2.Response:
    """The answer with a bound on its length; one that is not worth reading is closed unread, however long it is."""
    wrong: LLMError | None = None
    if response.status_code == 200 and media_type(response.headers) == "text/html":  # a page for people
        wrong = _other_api(response.headers)
    elif response.headers.get("content-encoding", "identity").lower() != "identity":  # it was asked for none
        wrong = LLMUnavailable(STRANGE)
    if wrong is not None:
        await response.aclose()
        raise wrong
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Bounded(response.stream)
    return response


def media_type(headers: Mapping[str, str]) -> str:
    """What a body says it is, without parameters; "" when it does not say."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _other_api(headers: Mapping[str, str]) -> LLMConfig:
    """Something answers at the base_url, and well, but it is not this API: no retry mends that."""
    found = media_type(headers)
    told = f" It answers with {found[:60]}." if _MEDIA.fullmatch(found) else ""
    return LLMConfig(f"The model's endpoint does not speak this API.{told}", hint=WHERE)


class _Bounded(httpx2.AsyncByteStream):
    """An answer that ends when it grows beyond what any model says."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = line = 0
        async for data in self._inner:
            total += len(data)
            end = data.rfind(b"\n")
            line = line + len(data) if end < 0 else len(data) - end - 1
            if total > MAX_ANSWER_BYTES or line > MAX_LINE_BYTES:
                raise LLMUnavailable(TOO_MUCH)
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()


class WireLLM(LLM):
    """A model behind HTTP. Subclasses speak one API through its SDK, whose own retries are off."""

    own_url: ClassVar[str]  # of the API itself; elsewhere a key may be unnecessary

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._redactor = Redactor([endpoint.key])
        try:
            place = place_of(endpoint.base_url)
        except ValueError as exc:
            raise LLMConfig(f"The provider's base_url {exc}.") from None
        self._http = httpx2.AsyncClient(
            transport=PinnedTransport(place, self.own_headers), timeout=httpx2.Timeout(endpoint.timeout_s, connect=CONNECT_S),
            follow_redirects=False, trust_env=False, headers={"Accept-Encoding": "identity"},
        )  # fmt: skip
        self.client = self.make_client(self._http)
        self.client._custom_headers = {}  # of ANTHROPIC_CUSTOM_HEADERS or OPENAI_CUSTOM_HEADERS; there is no public way

    @classmethod
    def configured(cls, config: dict[str, Any], key: str, name: str) -> LLM:
        url = config.get("base_url") or cls.own_url
        if not key and url.rstrip("/") == cls.own_url:
            raise LLMConfig("The provider has no key.", hint="Set config.api_key or config.api_key_env.")
        endpoint = Endpoint(
            url, key, name, config.get("timeout_s") or TIMEOUT_S, config.get("max_concurrency") or DEFAULT_CONCURRENCY
        )
        made = cls(endpoint)
        made.take(config)
        return made

    @property
    def at_home(self) -> bool:
        return self.endpoint.base_url.rstrip("/") == self.own_url

    # -- for subclasses

    @property
    def key(self) -> str:
        """Never empty: an SDK without a key looks for one in the server's environment and files."""
        return self.endpoint.key or "none"

    @property
    def own_headers(self) -> dict[str, str]:
        """The headers that say who asks."""
        return {"Authorization": f"Bearer {self.key}"}

    async def ask(self, path: str, content: bytes, headers: Mapping[str, str] | None = None) -> Any:
        """A question as JSON; returns the SDK's stream of its answer, whose items are JSON values.

        Through the SDK's way for requests of one's own: what it offers for this path checks and copies each message, and
        makes an object of each piece of an answer. That is half of what a turn costs.
        """
        stream = await self.client.post(
            path, content=content, cast_to=object, stream=True, stream_cls=self.sdk.AsyncStream[object],
            options={"headers": headers or {}},
        )  # fmt: skip
        if media_type(stream.response.headers) == "application/json":  # an answer in one piece was not asked for
            async with stream:
                raise self._not_a_stream(stream.response.headers, await stream.response.aread())
        return stream

    def _not_a_stream(self, headers: Mapping[str, str], body: bytes) -> LLMError:
        """Some gateways give status 200 to a refusal of theirs; anything else is another API."""
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            said = None
        if isinstance(said, dict) and said.get("error"):
            return of_status(200, said, headers, self._redactor)
        return _other_api(headers)

    def refusal(self, exc: Any) -> LLMError:
        """What the SDK's error of a status means."""
        return of_status(exc.status_code, exc.body, exc.response.headers, self._redactor)

    def wish_in(self, exc: Any) -> str:
        """The endpoint's own words in a refusal, in which a driver may look for what is wanted instead. A conversation that
        is too long is no such wish: raises `ContextTooLong`."""
        if isinstance(failure := self.refusal(exc), ContextTooLong):
            raise failure from exc
        return own_words(parts(exc.body)[1])

    async def pieces(self, stream: Any) -> AsyncGenerator[Any, None]:
        """The JSON values of an answer. From here on a lost connection broke a reply."""
        heard = False
        async with stream, aclosing(aiter(stream)) as values:
            try:
                async for value in values:
                    heard = True
                    yield value
            except self.sdk.APITimeoutError:
                raise
            except self.sdk.APIConnectionError as exc:
                raise _cause(exc) or LLMUnavailable(BROKEN) from exc
        if not heard and media_type(stream.response.headers) != EVENT_STREAM:
            raise _other_api(stream.response.headers)

    @property
    @abstractmethod
    def sdk(self) -> ModuleType:
        """The SDK, imported on first use: both take a second or two."""

    @abstractmethod
    def make_client(self, http: httpx2.AsyncClient) -> Any: ...

    @abstractmethod
    def replies(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
        """One question to the SDK; its own failures pass."""

    # -- the contract

    async def stream(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
        if not request.model:
            raise LLMConfig(
                "No model is named.", hint="Set model.model_name of the agent, or the provider's default_model."
            )
        async with in_line(self.endpoint.places, self.endpoint.name) as place:
            await asyncio.wait({place}, timeout=WAIT_TOLD_S)
            if not place.done():
                yield Waiting(self.endpoint.name, self.endpoint.places)
            await place
            room = SOME_CHARS + MAX_TOKEN_CHARS * request.max_output_tokens
            with self._translated():
                async with aclosing(self.replies(request)) as events:
                    async for event in events:
                        if isinstance(event, TextDelta | ThinkingDelta):
                            room -= len(event.text)
                        if room < 0:  # each piece becomes a part of the transcript
                            raise LLMUnavailable(TOO_MUCH)
                        yield event

    async def models(self) -> list[str]:
        with self._translated():
            try:
                return sorted([str(model.id) async for model in self.client.models.list()])
            except STRANGE_SHAPES as exc:
                raise _other_api({}) from exc

    async def close(self) -> None:
        await self._http.aclose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Every failure as one of ours, without a trace of the key in it."""
        sdk = self.sdk
        try:
            yield
        except LLMError:
            raise
        except (sdk.APITimeoutError, httpx2.TimeoutException) as exc:
            raise LLMUnavailable(f"The model did not answer within {self.endpoint.timeout_s:g} s.", hint=SLOW) from exc
        except sdk.APIConnectionError as exc:
            gone = isinstance(exc.__cause__, httpx2.RemoteProtocolError | httpx2.ReadError)
            raise _cause(exc) or (
                LLMUnavailable(UNANSWERED) if gone else LLMUnavailable(UNREACHED, hint=NOBODY)
            ) from exc
        except sdk.APIStatusError as exc:
            raise self.refusal(exc) from exc
        except sdk.APIError as exc:  # an error in the middle of an answer that began well
            raise of_status(200, exc.body, {}, self._redactor) from exc
        except httpx2.HTTPError as exc:
            raise _cause(exc) or LLMUnavailable(BROKEN) from exc
        except STRANGE_SHAPES as exc:
            log.info("unreadable answer of a model", provider=self.endpoint.name, error=repr(exc)[:300])
            log.debug("where it could not be read", exc_info=exc)
            raise LLMUnavailable(STRANGE, hint=PERHAPS_OTHER) from exc


def _cause(exc: BaseException) -> LLMError | None:
    """Our own error inside of an SDK's: the transport raised it."""
    inner = exc.__cause__ or exc.__context__
    while inner is not None:
        if isinstance(inner, LLMError):
            return inner
        inner = inner.__cause__ or inner.__context__
    return None
