"""Threads of views: warm ones are used again, idle ones end, and nothing of a request stays behind in one."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import warnings
import weakref
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.signals import request_finished, request_started
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from primer_site.asgi import OneHopHandler
from primer_site.threads import Threads
from tests.eventually import eventually_async
from tests.live import ROOT

SCOPE = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], "http_version": "1.1"}


async def test_calls_one_after_the_other_run_in_the_same_thread() -> None:
    threads = Threads("t")
    assert len({await threads.run(threading.get_ident) for _ in range(20)}) == 1


async def test_calls_at_once_each_have_a_thread_of_their_own() -> None:
    threads, together = Threads("t"), threading.Barrier(40, timeout=20)
    places = await asyncio.gather(*(threads.run(together.wait) for _ in range(40)))  # would break with one thread less
    assert sorted(places) == list(range(40))


async def test_a_failure_reaches_the_caller_and_the_thread_works_on() -> None:
    threads = Threads("t")
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert await threads.run(lambda: 1) == 1
    assert threads.idle == 1


async def test_a_thread_that_finds_nothing_to_do_ends_and_closes_what_it_held() -> None:
    ended: list[int] = []
    threads = Threads("t", idle_s=0.01, at_end=lambda: ended.append(threading.get_ident()))
    number = await threads.run(threading.get_ident)
    await eventually_async(lambda: ended == [number] and threads.idle == 0)


async def test_work_given_at_the_moment_a_thread_gives_up_is_done() -> None:
    threads = Threads("t", idle_s=0.0005)
    for number in range(400):
        assert await asyncio.wait_for(threads.run(lambda n=number: n), 20) == number  # type: ignore[misc]
        await asyncio.sleep(0.0005)


async def test_a_caller_that_is_cancelled_leaves_the_call_to_its_end() -> None:
    threads, go, done = Threads("t"), threading.Event(), threading.Event()

    def work() -> None:
        go.wait(20)
        done.set()

    call = asyncio.ensure_future(threads.run(work))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    go.set()
    await eventually_async(lambda: done.is_set() and threads.idle == 1)


async def test_a_waiting_thread_holds_nothing_of_its_last_call() -> None:
    class Large:
        pass

    threads, large = Threads("t"), Large()
    gone = weakref.ref(large)
    await threads.run(lambda kept: None, large)
    del large
    await eventually_async(lambda: gc.collect() >= 0 and gone() is None)


# -- the handler


def handler(view: Any) -> OneHopHandler:
    made = OneHopHandler()
    made.get_response = view  # type: ignore[method-assign]
    return made


async def test_a_request_leaves_no_context_variable_to_the_next_one_in_its_thread() -> None:
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")
    seen: list[tuple[int, str]] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append((threading.get_ident(), mark.get()))
        mark.set("left behind")
        return HttpResponse(b"ok")

    asgi = handler(view)
    for _ in range(2):
        client = ApplicationCommunicator(asgi, SCOPE)
        await client.send_input({"type": "http.request", "body": b""})
        assert (await client.receive_output())["status"] == 200
        await client.wait()
    assert seen[0][0] == seen[1][0]
    assert [value for _, value in seen] == ["none", "none"]


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])
async def test_each_request_starts_and_finishes_once(streaming: bool) -> None:
    told: list[str] = []

    def started(**_: Any) -> None:
        told.append("started")

    def finished(**_: Any) -> None:
        told.append("finished")

    async def parts() -> Any:
        yield b"a"
        yield b"b"

    asgi = handler(lambda request: StreamingHttpResponse(parts()) if streaming else HttpResponse(b"ab"))
    request_started.connect(started, sender=OneHopHandler)
    request_finished.connect(finished, sender=OneHopHandler)
    try:
        client = ApplicationCommunicator(asgi, SCOPE)
        await client.send_input({"type": "http.request", "body": b""})
        body = b""
        await client.receive_output()
        while (message := await client.receive_output())["type"] == "http.response.body":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await client.wait()
    finally:
        request_started.disconnect(started, sender=OneHopHandler)
        request_finished.disconnect(finished, sender=OneHopHandler)
    assert (body, told) == (b"ab", ["started", "finished"])


async def test_a_stream_nobody_takes_any_more_is_closed() -> None:
    closed = threading.Event()
    go = threading.Event()

    async def parts() -> Any:
        yield b"never read"

    def view(request: HttpRequest) -> StreamingHttpResponse:
        go.wait(20)
        response = StreamingHttpResponse(parts())
        response._resource_closers.append(closed.set)  # type: ignore[attr-defined]
        return response

    client = ApplicationCommunicator(handler(view), SCOPE)
    await client.send_input({"type": "http.request", "body": b""})
    await client.send_input({"type": "http.disconnect"})
    await client.wait()  # the request is over for the server while its view still works
    assert not closed.is_set()
    go.set()
    await eventually_async(closed.is_set)


def test_the_limit_of_descriptors_is_raised_as_far_as_it_may_be() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4000));"
        "from primer_site.server import raise_descriptor_limit; raise_descriptor_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "(4000, 4000)\n"


async def test_sync_streams_of_several_requests_are_read_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=20)

    def parts() -> Any:
        together.wait()
        yield b"x"

    asgi = handler(lambda request: StreamingHttpResponse(parts()))
    clients = [ApplicationCommunicator(asgi, SCOPE) for _ in range(3)]
    for client in clients:
        await client.send_input({"type": "http.request", "body": b""})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Django's advice not to stream a sync iterator
        starts = await asyncio.gather(*(client.receive_output(30) for client in clients))
        bodies = await asyncio.gather(*(client.receive_output(30) for client in clients))
    assert [start["status"] for start in starts] == [200] * 3
    assert [body["body"] for body in bodies] == [b"x"] * 3
    for client in clients:
        await client.wait()


async def test_a_view_whose_client_has_gone_reads_its_body_to_the_end() -> None:
    go, read = threading.Event(), threading.Event()
    seen: list[bytes] = []

    def view(request: HttpRequest) -> HttpResponse:
        go.wait(20)
        seen.append(request.body)
        read.set()
        return HttpResponse(b"ok")

    client = ApplicationCommunicator(handler(view), {**SCOPE, "method": "POST"})
    await client.send_input({"type": "http.request", "body": b"all of it"})
    await client.send_input({"type": "http.disconnect"})
    await client.wait()
    go.set()
    await eventually_async(read.is_set)
    assert seen == [b"all of it"]
