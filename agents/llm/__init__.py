"""Kinds of models. A kind's class, and with it its SDK, is imported on first use."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

from agents.llm.base import LLM, LLMConfig

KINDS: Final[dict[str, tuple[str, str]]] = {  # kind: (label, class)
    "anthropic": ("Anthropic Messages API", "agents.llm.anthropic.AnthropicLLM"),
    "openai": ("OpenAI Chat Completions", "agents.llm.openai.OpenAILLM"),
    "scripted": ("Scripted, without a key", "agents.llm.scripted.ScriptedLLM"),
}


def llm_class(kind: str) -> type[LLM]:
    """The driver's class; `KeyError` for a kind that does not exist."""
    module, _, name = KINDS[kind][1].rpartition(".")
    found: type[LLM] = getattr(import_module(module), name)
    return found


def make_llm(kind: str, config: dict[str, Any], secrets: dict[str, Any], name: str = "") -> LLM:
    """The driver of a configured provider, called `name`; `LLMConfig` when it lacks something."""
    return llm_class(kind).configured(config, key_of(config, secrets), name)


def key_of(config: dict[str, Any], secrets: dict[str, Any]) -> str:
    """The provider's key: stored, or in the variable of the server's environment that it names; "" for none."""
    if stored := secrets.get("api_key"):
        return str(stored)
    variable = config.get("api_key_env")
    if not variable:
        return ""
    if not (found := os.environ.get(str(variable), "")):
        raise LLMConfig(f"The server has no variable {variable}, which should hold the model's key.")
    return found
