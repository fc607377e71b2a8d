"""Which addresses are talked to, and what refusals mean."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.llm import address, make_llm
from agents.llm.address import AddressRefused, is_public, place_of
from agents.llm.base import LLMConfig, LLMError, LLMUnavailable
from agents.llm.failures import of_status, retry_after, scrub
from agents.redact import Redactor
from tests.llm.conftest import Making, asking, heard
from tests.llm.stub_http import KEY

KINDS = ("anthropic", "openai")
EXEC = "workspace__exec"
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1", "::1",
        "fe80::1", "fc00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::", "255.255.255.255",
    ],
)  # fmt: skip
def test_addresses_that_are_not_of_the_internet(text: str) -> None:
    import ipaddress

    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_of_the_internet(text: str) -> None:
    import ipaddress

    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]"])
async def test_private_names_in_any_spelling_are_refused(host: str) -> None:
    with pytest.raises(AddressRefused, match="private address") as caught:
        await address.resolve(place_of(f"https://{host}:8443/v1"))
    assert "PRIMER_LLM_HOSTS" in caught.value.hint_text


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "https://", "https://a:b@x/", "https://x/?q=1", "https://x:99999/", "http://models.example/v1", "//x"]
)  # fmt: skip
def test_what_is_no_base_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"must|has"):
        place_of(url)


@each_kind
async def test_a_name_that_leads_elsewhere_later_is_checked_again_at_the_connection(
    kind: str, wired: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebinding: public while it is checked at saving, private when it is connected to."""
    model = wired(kind)
    assert model.stub is not None
    port = model.stub.port
    looked: list[str] = []

    async def resolver(self: Any, host: str, port: int, **options: Any) -> Any:
        looked.append(host)
        answer = "93.184.216.34" if len(looked) == 1 else "127.0.0.1"
        return [(2, 1, 6, "", (answer, port))]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", resolver)
    url = f"https://models.example:{port}/v1"
    assert await address.resolve(place_of(url)) == ["93.184.216.34"]
    llm = make_llm(kind, {"kind": kind, "base_url": url}, {"api_key": KEY})
    with pytest.raises(AddressRefused):
        await heard(llm, asking())
    assert looked == ["models.example", "models.example"]
    assert not model.stub.asked
    await llm.close()


@each_kind
async def test_checked_addresses_are_kept_for_a_while_and_asked_for_again_when_none_answers(
    kind: str, wired: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = wired(kind)
    assert model.stub is not None
    port, looked = model.stub.port, []
    model.stub.needs_key = False

    async def resolver(self: Any, host: str, port: int, **options: Any) -> Any:
        looked.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", resolver)
    monkeypatch.setattr("django.conf.settings.PRIMER_LLM_HOSTS", [f"models.example:{port}"])
    url = model.stub.url.replace("127.0.0.1", "models.example")
    llm = make_llm(kind, {"kind": kind, "base_url": url, "default_model": "stub-1"}, {"api_key": KEY})
    await heard(llm, asking())
    await heard(llm, asking())
    assert looked == ["models.example"]
    monkeypatch.setattr("agents.llm.wire.ADDRESSES_S", -1.0)
    llm2 = make_llm(kind, {"kind": kind, "base_url": url, "default_model": "stub-1"}, {"api_key": KEY})
    await heard(llm2, asking())
    await heard(llm2, asking())
    assert len(looked) == 3
    model.stub.stop()
    for _ in range(2):
        with pytest.raises(LLMUnavailable):
            await heard(llm, asking())
    assert len(looked) == 4, "the address that did not answer is not kept"
    for one in (llm, llm2):
        await one.close()


# -- failures


@given(
    st.integers(100, 599),
    st.one_of(st.none(), st.text(), st.lists(st.integers()), st.dictionaries(st.text(), st.text())),
)
@settings(max_examples=200, deadline=None)
def test_any_refusal_is_one_of_our_errors(status: int, body: Any) -> None:
    error = of_status(status, {"error": body}, {}, Redactor([KEY]))
    assert isinstance(error, LLMError)
    assert error.detail.isprintable() or "\n" not in error.detail


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_what_an_endpoint_says_is_short_and_on_one_line(text: str) -> None:
    said = scrub(text + KEY, Redactor([KEY]))
    assert len(said) <= 301
    assert KEY not in said
    assert not {"\n", "\x1b", "\x00"} & set(said)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None), ({"retry-after": "3"}, 3), ({"retry-after": "0.2"}, 1), ({"retry-after-ms": "1500"}, 2),
        ({"retry-after": "soon"}, None), ({"retry-after": "-1"}, 0), ({"retry-after": "nan"}, None), ({"retry-after": "inf"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
    ],
)  # fmt: skip
def test_the_ways_to_ask_for_a_pause(headers: dict[str, str], seconds: int | None) -> None:
    assert retry_after(headers) == seconds


def test_an_account_without_money_is_not_asked_again() -> None:
    body = {"error": {"code": "insufficient_quota", "type": "insufficient_quota", "message": "You exceeded your quota"}}
    assert isinstance(of_status(429, body, {}, Redactor()), LLMConfig)


@pytest.mark.parametrize(
    ("said", "shown"), [("Overloaded", '"Overloaded".'), ("Look at your plan.", '"Look at your plan."')]
)
def test_an_endpoints_words_end_a_sentence_once(said: str, shown: str) -> None:
    error = of_status(529, {"error": {"type": "overloaded_error", "message": said}}, {}, Redactor())
    assert error.detail == f"The model's endpoint is overloaded. It says: {shown}"
