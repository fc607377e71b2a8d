"""Writes cli/sentences.py from docs/openapi.yaml: `python -m cli.wording`; a test compares.

What a field means is said once, by the server beside the field; `explain` needs no server, so the words come along.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from cli.published import kinds_of
from cli.schema import Schema

SOURCE = Path(__file__).resolve().parent.parent / "docs" / "openapi.yaml"
TARGET = Path(__file__).resolve().parent / "sentences.py"
HEAD = '''"""What the fields mean. Written by `make docs` from docs/openapi.yaml: change the help text of the server's field."""

from __future__ import annotations

from typing import Final

SENTENCES: Final[dict[str, dict[str, str]]] = {
'''


def described(schema: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """Every field below a schema that has a sentence, named as `explain` names it."""
    for below in (*schema.get("oneOf", ()), *schema.get("x-cases", {}).values()):
        yield from described(below, path)
    if schema.get("items") and not path.endswith("[]"):
        yield from _named(f"{path}[]", schema["items"])
    more = schema.get("additionalProperties")
    named = schema.get("properties", {}) | ({"NAME": more} if isinstance(more, dict) and more else {})
    for name, below in named.items():
        yield from _named(f"{path}.{name}" if path else name, below)


def _named(path: str, schema: Schema) -> Iterator[tuple[str, str]]:
    if text := " ".join(str(schema.get("description") or "").split()):
        yield path, text
    yield from described(schema, path)


def text() -> str:
    """The module, for the committed document."""
    import yaml

    parts = [HEAD]
    for kind, schema in sorted(kinds_of(yaml.safe_load(SOURCE.read_text())).items()):
        first: dict[str, str] = {}
        for path, sentence in described(schema):
            first.setdefault(path, sentence)
        lines = [
            f"        {json.dumps(path)}: {json.dumps(sentence, ensure_ascii=False)},\n"
            for path, sentence in first.items()
        ]
        parts.append(f'    "{kind}": {{\n{"".join(lines)}    }},\n')
    return "".join([*parts, "}  # fmt: skip\n"])


if __name__ == "__main__":
    TARGET.write_text(text())
