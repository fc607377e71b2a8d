"""The six kinds, the ways people write them, and references like `workspace/ws-…`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cli.errors import UsageError
from cli.text import nearest


@dataclass(frozen=True, slots=True)
class Kind:
    """`name` as in YAML, `plural` as in URLs; `prefix` is set where the server makes the ids."""

    name: str
    plural: str
    short: str
    also: tuple[str, ...] = ()
    prefix: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        return (self.name, self.plural, self.short, *self.also)


LLM_PROVIDER = Kind("llm_provider", "llm_providers", "llm", ("model_provider", "model_providers"))
PROVIDER = Kind("workspace_provider", "workspace_providers", "wp", ("provider", "providers"))
TEMPLATE = Kind("workspace_template", "workspace_templates", "wt", ("template", "templates"))
AGENT = Kind("agent", "agents", "ag")
WORKSPACE = Kind("workspace", "workspaces", "ws", prefix="ws-")
SESSION = Kind("session", "sessions", "se", prefix="sess-")

# The order of need: what a later one names is there before it.
KINDS = (LLM_PROVIDER, PROVIDER, TEMPLATE, AGENT, WORKSPACE, SESSION)
BY_NAME = {kind.name: kind for kind in KINDS}
_BY_WORD = {word: kind for kind in KINDS for word in kind.words}
_OWN_KIND = re.compile(r"(ws-|sess-)[0-9a-f]*(…|\.\.\.)?$")
SERVER_ID = re.compile(r"(ws|sess)-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Ref:
    """One object as the caller named it; a server's id may be cut until it is resolved."""

    kind: Kind
    id: str

    def __str__(self) -> str:
        return f"{self.kind.name}/{self.id}"


def kind_named(text: str) -> Kind:
    """The kind somebody meant; raises UsageError with the nearest name."""
    word = text.lower().replace("-", "_")
    if word in _BY_WORD:
        return _BY_WORD[word]
    close = nearest(word, _BY_WORD)
    hint = f"did you mean {close}?" if close else "kinds: " + ", ".join(kind.name for kind in KINDS)
    raise UsageError(f'no kind "{text}"', hint=hint)


def ref_of(kind: Kind, text: str) -> Ref:
    """An id of a known kind, written as `ID` or `KIND/ID`; another kind in it is an error."""
    head, slash, tail = text.partition("/")
    if slash:
        if kind_named(head) is not kind:
            raise UsageError(f'"{text}" is not a {kind.name}: two kinds in one command')
        text = tail
    text = text.removesuffix("…").removesuffix("...")  # as tables cut them
    if not text:
        raise UsageError(f"{kind.name}: an id is missing", hint=f"list them with: primectl get {kind.plural}")
    if kind.prefix:
        text = text.lower()
        if not re.fullmatch(rf"{kind.prefix}[0-9a-f]{{1,16}}", text):
            raise UsageError(
                f'"{text}" is not a {kind.name} id',
                hint=f"such an id is {kind.prefix} and 16 hex digits: primectl get {kind.plural}",
            )
        if len(text) - len(kind.prefix) < 4:
            raise UsageError(f'"{text}" is too short', hint="give four hex digits or more")
    return Ref(kind, text)


def _kind_of_id(text: str) -> Kind | None:
    """The kind that the prefix of a server's id names; None for anything else."""
    found = _OWN_KIND.match(text.lower())
    return next(kind for kind in KINDS if kind.prefix == found[1]) if found else None


def refs_of(words: Sequence[str]) -> tuple[Kind | None, list[Ref]]:
    """`KIND [ID…]`, `KIND/ID…`, or ids whose prefix says their kind; the kind is None only when the references are of several kinds."""
    if not words:
        raise UsageError("a kind is missing", hint="kinds: " + ", ".join(kind.name for kind in KINDS))
    if "/" not in words[0] and _kind_of_id(words[0]) is None:
        kind = kind_named(words[0])
        return kind, [ref_of(kind, word) for word in words[1:]]
    refs = []
    for word in words:
        head, slash, _ = word.partition("/")
        own = _kind_of_id(word)
        if own is not None:
            refs.append(ref_of(own, word))
            continue
        if not slash:
            raise UsageError(f'"{word}": write KIND/ID, or the kind first: primectl VERB KIND ID…')
        refs.append(ref_of(kind_named(head), word))
    kinds = {ref.kind for ref in refs}
    return (kinds.pop() if len(kinds) == 1 else None), refs
