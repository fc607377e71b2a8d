"""Which addresses a model endpoint may have. A name is resolved, every address it has is checked, and only those are used.

A private address is the operator's to allow, by `host:port` in PRIMER_LLM_HOSTS: an administrator of Primer need not be one
of the network the server stands in.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings

from agents.llm.base import LLMConfig, LLMUnavailable

NAT64 = ipaddress.ip_network("64:ff9b::/96")
PORTS = {"http": 80, "https": 443}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(LLMConfig):
    """The model's endpoint has an address that this server does not talk to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an endpoint is: `scheme` http or https, `host` a name or an address in lower case, `port`."""

    scheme: str
    host: str
    port: int

    @property
    def label(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def allowed(self) -> bool:
        """Whether the operator named it: then its address may be private, and plain http may carry a key."""
        return self.label in {entry.strip().lower() for entry in settings.PRIMER_LLM_HOSTS}


def place_of(url: str) -> Place:
    """The place of a `base_url`; raises ValueError with a sentence part for what is not one."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError("must look like https://models.example/v1")
    if parts.username or parts.password:
        raise ValueError("must not contain a name or password: use api_key")
    if parts.query or parts.fragment:
        raise ValueError("must not contain a query or fragment")
    try:
        port = parts.port or PORTS[parts.scheme]
    except ValueError:
        raise ValueError("has a port that is not a number below 65536") from None
    place = Place(parts.scheme, parts.hostname.lower(), port)
    if place.scheme == "http" and not place.allowed:
        raise ValueError(f"must be https, or the server must have {place.label} in PRIMER_LLM_HOSTS")
    return place


async def resolve(place: Place) -> list[str]:
    """The addresses to connect to, in the resolver's order.

    Raises `AddressRefused` when any of them is not public and the operator did not allow the place, `LLMUnavailable` when
    there is none.
    """
    addresses = await _addresses(place)
    if not place.allowed and not all(is_public(ipaddress.ip_address(text.partition("%")[0])) for text in addresses):
        raise AddressRefused(
            f"The model's endpoint {place.label} is at a private address.",
            hint=f"If that is meant, the server's operator adds {place.label} to PRIMER_LLM_HOSTS.",
        )
    return addresses


async def _addresses(place: Place) -> list[str]:
    try:
        return [str(ipaddress.ip_address(place.host))]  # no thread, no resolver
    except ValueError:
        pass
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise LLMUnavailable(f"The name of the model's endpoint, {place.host}, does not lead to an address.") from exc
    return list(dict.fromkeys(str(item[4][0]) for item in found))


def is_public(address: Address) -> bool:
    """Whether an address belongs to the internet, also when it is written inside of an IPv6 one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast
