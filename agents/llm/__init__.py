"""Kinds of models. A kind's class, and with it its SDK, is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from agents.llm.base import LLM

KINDS: Final[dict[str, tuple[str, str]]] = {  # kind: (label, factory taking configuration and secrets)
    "scripted": ("Scripted, without a key", "agents.llm.scripted.make"),
}


def make_llm(kind: str, config: dict[str, Any], secrets: dict[str, Any]) -> LLM:
    """The driver of a configured provider; `KeyError` for a kind that does not exist."""
    module, _, name = KINDS[kind][1].rpartition(".")
    made: LLM = getattr(import_module(module), name)(config, secrets)
    return made
