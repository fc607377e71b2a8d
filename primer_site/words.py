"""Words that depend on a number or on a kind. Pure; templates have `pluralize` for the same."""

from __future__ import annotations


def counted(number: float, noun: str, plural: str = "") -> str:
    """`1 turn`, `2 turns`, `1 process`; `plural` where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def kind_words(kind: str) -> str:
    """A kind as a sentence begins with it: `Workspace template`, `LLM provider`."""
    text = kind.replace("_", " ")
    return text.replace("llm", "LLM", 1) if text.startswith("llm") else text[:1].upper() + text[1:]
