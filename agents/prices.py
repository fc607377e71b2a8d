"""What tokens cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents.messages import Usage

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Per million tokens, in whatever currency the operator counts."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0

    def of(self, usage: Usage) -> float:
        total = (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + usage.cache_read_tokens * self.cache_read
            + usage.cache_write_tokens * self.cache_write
        )
        return round(total / MILLION, 9)


def prices_of(data: dict[str, dict[str, float]]) -> dict[str, Price]:
    """The prices in a provider's configuration. What a cache costs is the price of input where nothing else is said."""
    return {
        model: Price(
            given["input"],
            given["output"],
            given.get("cache_read", given["input"]),
            given.get("cache_write", given["input"]),
        )
        for model, given in data.items()
    }


def add_cost(before: dict[str, Any], cost: float | None) -> float | None:
    """The cost so far and one more; None as soon as a part of it is not known. `before` is a stored usage."""
    spent = before.get("cost")
    if spent is None and not Usage.from_dict(before).total:
        spent = 0.0
    return None if spent is None or cost is None else round(spent + cost, 9)
