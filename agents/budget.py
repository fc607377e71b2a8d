"""What a run may use, what is left of it, and how the model is told. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from agents.messages import Usage
from primer_site.words import counted

FEW_TURNS, FEW_CALLS, FEW_SECONDS = 2, 5, 60.0
LITTLE = 0.2  # of a limit: from here on the model is told
NOTE = "[Left of this run: "  # how the line begins


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use; None is no limit. `timeout_s` is wall clock, `max_tokens` the sum of all tokens."""

    max_turns: int = 50
    max_tool_calls: int = 200
    timeout_s: float = 1800.0
    max_tokens: int | None = None

    def told(self) -> str:
        """For the system prompt: the same text in every turn."""
        turns, calls = counted(self.max_turns, "turn"), counted(self.max_tool_calls, "tool call")
        parts = [turns, calls, f"{self.timeout_s:g} s"]
        if self.max_tokens is not None:
            parts.append(counted(self.max_tokens, "token"))
        return f"This run ends after {_list(parts, 'or')}. When little is left, you are told."


@dataclass(slots=True)
class Spent:
    """What a run has used."""

    turns: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)

    def over(self, limits: Limits) -> tuple[str, str] | None:
        """The name of the limit that is met, and its value in words; None while another turn is allowed."""
        if self.turns >= limits.max_turns:
            return "max_turns", counted(limits.max_turns, "turn")
        if self.tool_calls > limits.max_tool_calls:
            return "max_tool_calls", counted(limits.max_tool_calls, "tool call")
        if limits.max_tokens is not None and self.out_of_tokens(limits):
            return "max_tokens", counted(limits.max_tokens, "token")
        return None

    def out_of_tokens(self, limits: Limits) -> bool:
        return limits.max_tokens is not None and self.usage.total >= limits.max_tokens

    def left(self, limits: Limits, seconds: float) -> str:
        """A line for the model about what is nearly used up; "" while there is enough of everything."""
        parts = []
        turns, calls = limits.max_turns - self.turns, limits.max_tool_calls - self.tool_calls
        if turns <= max(FEW_TURNS, LITTLE * limits.max_turns):
            parts.append(counted(max(turns, 0), "turn"))
        if calls <= max(FEW_CALLS, LITTLE * limits.max_tool_calls):
            parts.append(counted(max(calls, 0), "tool call"))
        if seconds <= min(max(FEW_SECONDS, LITTLE * limits.timeout_s), limits.timeout_s / 2):
            parts.append(f"{max(0.0, seconds):.0f} s")
        if limits.max_tokens is not None and (tokens := limits.max_tokens - self.usage.total) <= limits.max_tokens / 4:
            parts.append(counted(max(tokens, 0), "token"))
        return f"{NOTE}{_list(parts, 'and')}.]" if parts else ""


def _list(parts: list[str], word: str) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {word} {parts[-1]}"
