"""The one door into the docker SDK: a few threads, one place that decides what 404 and 409 mean, answers bounded in size and time."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from primer_site.errors import PrimerError
from workspaces.providers.base import EngineForbidden, EngineUnavailable, ProviderError
from workspaces.providers.channel import EngineChannel, open_exec
from workspaces.providers.endpoint import DEFAULT_SOCKET, Endpoint, TlsFiles, refuse_link_local

if TYPE_CHECKING:
    from docker import APIClient

T = TypeVar("T")
TIMEOUT_S: Final = 30.0  # one call, also one that waits behind a busy engine
THREADS: Final = 4
CHANGES: Final = (
    "create",
    "start",
    "stop",
    "remove",
    "exec_create",
    "pull",
)  # verbs that begin so make or end something
ANSWER_LIMIT: Final = 16 * 1024 * 1024  # bytes of one answer


class Missing(ProviderError):
    """The engine has no such object (404)."""

    code, status = "engine_missing", 404


class Busy(ProviderError):
    """The engine refused because of the object's state: a name in use, a removal in progress (409), a network in use (403)."""

    code, status = "engine_busy", 409


class Engine:
    """One engine. Connects at the first call; thread-safe; `close` releases threads and files."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="engine")
        self._lock = threading.Lock()
        self._client: APIClient | None = None
        self._files: TlsFiles | None = None

    async def call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """One call of the SDK's low-level client by name, for instance `call("inspect_container", id)`.

        Raises `Missing` (404), `Busy` (409), `EngineUnavailable`, `EngineForbidden`, or `ProviderError` for any other
        refusal.
        """
        changes = verb.startswith(CHANGES)
        return await self.run(lambda client: getattr(client, verb)(*args, **kwargs), changes=changes)

    async def run(self, work: Callable[[APIClient], T], *, changes: bool = False) -> T:
        """The same for several calls in one visit to the thread.

        `changes`: a caller that is cancelled still waits for the end of the call, since the engine finishes it in any
        case, and cleaning up before that would miss what it makes.
        """
        future = asyncio.wrap_future(self._submit(work))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else will look at it
            if changes:
                await asyncio.wait([future])
            raise

    def _submit(self, work: Callable[[APIClient], T]) -> Future[T]:
        try:
            return self._threads.submit(self._guarded, work)
        except RuntimeError as exc:
            raise EngineUnavailable("This connection to the container engine is closed.") from exc

    def _guarded(self, work: Callable[[APIClient], T]) -> T:
        try:
            return work(self._connected())
        except PrimerError:
            raise
        except Exception as exc:
            # Everything: a client that was fed nonsense by an engine raises KeyError and TypeError as well.
            # Without the address: what fails in a workspace is told to its owner, who may not know where engines are.
            error = translate(exc)
            error.log = f"{self.endpoint.label}: {error.log}"
            raise error from exc

    def _connected(self) -> APIClient:
        with self._lock:
            if self._client is None:
                if self.endpoint.host:
                    refuse_link_local(self.endpoint.host, self.endpoint.port)
                else:
                    knock(self.endpoint.socket_path)
                if self.endpoint.tls and self._files is None:
                    self._files = TlsFiles(self.endpoint.tls)
                self._client = open_client(self.endpoint.base_url, self._files, TIMEOUT_S)
            return self._client

    async def open_exec(self, exec_id: str, timeout_s: float = TIMEOUT_S) -> EngineChannel:
        """Starts a created exec and returns its stream."""
        version = await self.run(lambda client: client.api_version)
        context = await asyncio.to_thread(self._files.context) if self._files else None
        return await open_exec(self.endpoint, context, str(version), exec_id, timeout_s)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()
        if self._files is not None:
            self._files.close()


def knock(path: str) -> None:
    """OSError when nobody listens; asked first, because the SDK leaves its socket open when it cannot connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(TIMEOUT_S)
        probe.connect(path)


def open_client(base_url: str, files: TlsFiles | None, timeout_s: float) -> APIClient:
    """A low-level client that has asked the engine for its version; raises what the SDK raises."""
    from docker import APIClient
    from docker.tls import TLSConfig

    tls: Any = None
    if files is not None:
        files.context()  # the SDK's own error for broken PEM names nothing
        pair = (files.paths["cert"], files.paths["key"]) if "cert" in files.paths else None
        tls = TLSConfig(client_cert=pair, ca_cert=files.paths.get("ca"), verify=True)
    # Made with a fixed version first: asking for it is the first answer to come, and it must be bounded as well.
    client = APIClient(base_url=base_url, version="1.41", timeout=int(timeout_s), tls=tls)
    client.trust_env = False  # a proxy of the environment is not on the way to an engine
    client.hooks["response"].append(functools.partial(_bounded, timeout_s=timeout_s))
    offered = str(client.version(api_version=False)["ApiVersion"])
    client._version = speak(offered)  # type: ignore[attr-defined]  # the SDK sets it only in its constructor
    return client


def speak(offered: str) -> str:
    """The API version to speak: the engine's, at most the newest that the SDK knows."""
    from docker.constants import DEFAULT_DOCKER_API_VERSION as NEWEST

    def key(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.split("."))

    return min(offered, NEWEST, key=key)


def open_local(engine_url: str = "", *, timeout_s: float = TIMEOUT_S) -> APIClient:
    """A client for an operator's tool on the engine's host; `EngineUnavailable` or `EngineForbidden` with a sentence."""
    url = engine_url or os.environ.get("DOCKER_HOST") or f"unix://{DEFAULT_SOCKET}"
    try:
        if url.startswith("unix://"):
            knock(url.removeprefix("unix://"))
        return open_client(url, None, timeout_s)
    except Exception as exc:
        raise translate(exc, url.removeprefix("unix://")) from exc


def _bounded(response: Any, *_: Any, timeout_s: float, **kwargs: Any) -> None:
    """Reads an answer with a limit on size and total time; the library has neither. Streams are read by their callers."""
    if kwargs.get("stream"):
        return
    deadline, parts, size = time.monotonic() + timeout_s, [], 0
    for part in response.iter_content(65536):
        parts.append(part)
        size += len(part)
        if size > ANSWER_LIMIT or time.monotonic() > deadline:
            response.close()
            raise ValueError("answer too long")
    response._content = b"".join(parts)


def translate(exc: BaseException, where: str = "") -> ProviderError:
    """What an exception of the SDK means; the engine's own text goes to `log` only, since it holds paths of its host.

    `where` is the engine's address, for sentences that only administrators read.
    """
    import requests
    from docker.errors import DockerException

    text, at = f"{type(exc).__name__}: {exc}"[:2000], f" at {where}" if where else ""
    chain = list(_causes(exc))
    # Looked for in the whole chain: for an error without the engine's usual body the SDK raises a KeyError.
    answers = [
        cause.response for cause in chain if isinstance(cause, requests.HTTPError) and cause.response is not None
    ]
    if answers:
        kind = {404: Missing, 409: Busy, 403: Busy}.get(answers[0].status_code, ProviderError)
        return kind(log=text)
    if any(isinstance(cause, PermissionError) for cause in chain):
        return EngineForbidden(f"The container engine refused access to {where or 'its socket'}.", log=text)
    if any(isinstance(cause, ssl.SSLError) for cause in chain):
        hint = "Check ca, cert and key of the provider, and that the engine's certificate names this host."
        return EngineUnavailable(f"No trusted connection to the container engine{at}.", hint=hint, log=text)
    if any(isinstance(cause, requests.Timeout | TimeoutError) for cause in chain):
        return EngineUnavailable(f"The container engine{at} did not answer in time.", log=text)
    if any(isinstance(cause, OSError) for cause in chain) or isinstance(exc, DockerException):
        # One sentence for missing, refused and not a socket: it must not tell which files exist.
        return EngineUnavailable(f"No container engine answers{at}.", log=text)
    return EngineUnavailable(f"What answers{at or ' there'} does not speak the container engine's API.", log=text)


def _causes(exc: BaseException | None) -> Any:
    """The exception and what lies behind it; the HTTP library hides the system's error in `args` and `reason`."""
    todo, seen = [exc], set()
    while todo:
        item = todo.pop()
        if not isinstance(item, BaseException) or id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        todo += [item.__cause__, item.__context__, getattr(item, "reason", None), *item.args]
