"""The kinds of providers. A literal registry: from a use of `KINDS` one step leads to the class, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workspaces.providers.base import Provider

KINDS: Final[dict[str, tuple[str, str]]] = {  # kind: (label, class)
    "container": ("Container engine", "workspaces.providers.container.ContainerProvider"),
    "local": ("Directory on the server, not isolated", "workspaces.providers.local.LocalProvider"),
    "fake": ("Fault injection, for tests", "workspaces.providers.fake.FakeProvider"),
}
# What a user may choose: `fake` ships and is tested as a product, but no API body can name it.
CHOICES: Final = tuple(kind for kind in KINDS if kind != "fake")


def provider_class(kind: str) -> type[Provider]:
    """The class of a kind; KeyError for an unknown one, which the API refuses before."""
    module, _, name = KINDS[kind][1].rpartition(".")
    found: type[Provider] = getattr(import_module(module), name)
    return found
