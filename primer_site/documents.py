"""YAML for the pages: read by the strict reader of the command line, written the way people edit it."""

from __future__ import annotations

from typing import Any

from cli.validate import Path
from cli.yamldoc import Tree, YamlError, documents
from primer_site.errors import FieldError, Invalid

__all__ = ["Tree", "at_line", "read", "write"]


def read(text: str) -> Tree:
    """The one document of a text, a mapping; `Invalid` names the line of what is not taken."""
    try:
        found = list(documents(text))
    except YamlError as exc:
        raise Invalid("This is not taken as YAML.", errors=[FieldError(f"line {exc.line}", exc.message)]) from None
    if len(found) != 1 or not isinstance(found[0].value, dict):
        raise Invalid("This is not one YAML document.", errors=[FieldError("line 1", "must be one mapping")])
    return found[0]


def at_line(tree: Tree, field: str) -> str:
    """`line 7` of a dotted field, of its nearest parent where the field is missing."""
    steps: list[str | int] = []
    for part in field.split("."):
        name, _, rest = part.partition("[")
        numbers = rest.replace("]", "").split("[")  # a name that somebody gave may have brackets, too
        steps += [name, *(int(text) for text in numbers if text.isascii() and text.isdigit() and len(text) < 10)]
    path: Path = tuple(steps)
    return f"line {tree.line_of(path)}"


def write(value: Any) -> str:
    import yaml

    class Writer(yaml.SafeDumper):
        """Text of several lines as a block."""

    def text(dumper: Any, value: str) -> Any:
        block = "|" if "\n" in value and not value.endswith(" ") else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=block)

    Writer.add_representer(str, text)
    written: str = yaml.dump(value, Dumper=Writer, sort_keys=False, allow_unicode=True, width=100)
    return written
