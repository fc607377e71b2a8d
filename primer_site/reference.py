"""docs/api.md, written from the OpenAPI document: `python -m primer_site.reference`; a test compares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from primer_site.words import kind_words

DOCS = Path(__file__).resolve().parent.parent / "docs"
TARGET = DOCS / "api.md"
Node = dict[str, Any]
METHODS = ("get", "post", "put", "patch", "delete")

HEAD = """\
# API reference

<!-- Written by `make docs` from openapi.yaml: change the code, not this page. -->

The same as a machine reads it is in [openapi.yaml](openapi.yaml); a running server shows it at `/v1/docs/`.
[Run code from a program](howto/program.md) has examples that work as they stand.

## What holds for every route

- `Authorization: Bearer <token>`; a token is never part of a URL. Times are RFC 3339 in UTC, sizes are bytes, durations
  end in `_s` or `_ms`.
- Lists answer `{"items": […], "next_cursor": …, "total": …}` and take `limit`, `cursor`, `sort` (a leading `-` turns it
  round) and the filters named with each.
- Objects have an ETag, `"<spec>.<state>"`. `If-None-Match` compares all of it (304). `If-Match` compares the part before
  the dot (412), so a phase that moves does not spoil an edit.
- `Idempotency-Key` on a POST: the same key and body get the same answer for 24 hours, another body is refused (409).
  Routes that show a secret once keep no answer; the repeat is a 409 that says so. A repeat that comes while the first
  request still works waits for its answer, for 5 seconds at most, then it is a 409 with `Retry-After`.
- `?dry_run=true` runs every check and stores nothing. The answer is the object as it would be; ids that the server would
  make stay empty.
- Secrets are write-only: reads show `{"set": true, "last4": "…"}`. Left out in a PUT they stay, `null` removes them.
- Unknown fields are refused by name (422).

Errors have one shape, `application/problem+json`:

```json
{"type": "about:blank", "title": "…", "status": 422, "code": "invalid", "detail": "a sentence",
 "errors": [{"field": "backend.memory_bytes", "message": "must be at least 67108864"}], "request_id": "…"}
```

"""


class Document:
    """An OpenAPI document as far as the page needs it."""

    def __init__(self, raw: Node) -> None:
        self.raw = raw
        self.schemas: dict[str, Node] = raw["components"]["schemas"]

    def page(self) -> str:
        sections: dict[str, list[str]] = {}
        for path, routes in self.raw["paths"].items():
            for method in METHODS:
                if method in routes:
                    tag = (routes[method].get("tags") or ["other"])[0]
                    sections.setdefault(tag, []).append(self.operation(method, path, routes[method]))
        parts = [
            HEAD,
            self.raw["info"]["description"].partition("\n\n")[2].rstrip(),
            "\n\n",
            "## Errors\n\n",
            *self.failures(),
        ]
        for tag, operations in sections.items():
            parts += [f"## {kind_words(tag)}\n\n", *operations]
        parts += ["## Objects\n\n", *self.objects()]
        return "".join(parts).rstrip() + "\n"

    def failures(self) -> Iterator[str]:
        yield "`code` never changes its meaning: match on it, and not on the sentence.\n\n"
        yield "| status | `code` | when |\n|---|---|---|\n"
        for response in sorted(self.raw["components"].get("responses", {}).items()):
            name, body = response
            _, narrowed = body["content"]["application/problem+json"]["schema"]["allOf"]
            codes = " ".join(f"`{code}`" for code in narrowed["properties"]["code"]["enum"])
            yield f"| {name.removeprefix('Failure')} | {codes} | {cell(body.get('description', ''))} |\n"
        yield "\n"

    def operation(self, method: str, path: str, route: Node) -> str:
        lines = [f"### {method.upper()} {path}\n\n"]
        if text := route.get("description"):
            lines.append(f"{text.strip()}\n\n")
        if rows := [parameter(one) for one in route.get("parameters", []) if one["in"] != "path"]:
            lines += ["| parameter | in | type | meaning |\n|---|---|---|---|\n", *rows, "\n"]
        for kind, media in route.get("requestBody", {}).get("content", {}).items():
            if method == "patch":
                lines.append("The body holds the fields to change; those of PUT.\n\n")
            elif kind == "application/json":
                lines += self.body(media["schema"])
            else:
                lines.append(f"The body may also be `{kind}`.\n\n")
        answers = [
            self.answer(code, one) for code, one in route["responses"].items() if "$ref" not in one and code < "400"
        ]
        return "".join([*lines, *answers, "\n"])

    def body(self, schema: Node) -> Iterator[str]:
        rows = list(self.rows(schema, ""))
        if rows:
            yield "| field of the body | type | default | meaning |\n|---|---|---|---|\n"
            yield from rows
            yield "\n"

    def rows(self, schema: Node, prefix: str) -> Iterator[str]:
        """A table row for each field; objects of their own are named and described once, under Objects."""
        found = self.follow(schema)
        required = found.get("required", [])
        for name, field in found.get("properties", {}).items():
            if field.get("readOnly"):
                continue
            default = "required" if name in required else shown(field.get("default"))
            yield f"| `{prefix}{name}` | {self.kind(field)} | {default} | {meaning(field)} |\n"

    def answer(self, code: str, response: Node) -> str:
        kinds = [
            self.kind(media["schema"]) if kind == "application/json" else f"`{kind}`"
            for kind, media in response.get("content", {}).items()
        ]
        text = cell(response.get("description", "")).rstrip(".")
        return f"- **{code}** {' or '.join(kinds)}{': ' if kinds and text else ''}{text}\n"

    def objects(self) -> Iterator[str]:
        for name, schema in sorted(self.schemas.items()):
            fields = schema.get("properties")
            if not fields or name.startswith("Paginated"):
                continue
            yield f"### {name}\n\n"
            if text := schema.get("description"):
                yield f"{text.strip()}\n\n"
            yield "| field | type | meaning |\n|---|---|---|\n"
            for field, one in fields.items():
                yield f"| `{field}` | {self.kind(one)} | {meaning(one)} |\n"
            yield "\n"

    def follow(self, schema: Node) -> Node:
        while "$ref" in schema:
            schema = self.schemas[schema["$ref"].rpartition("/")[2]]
        return schema

    def kind(self, schema: Node) -> str:
        """`integer`, `[string]`, a list of values, or a link to the object."""
        if several := schema.get("oneOf") or schema.get("anyOf"):
            return " or ".join(self.kind(one) for one in several)
        if len(parts := schema.get("allOf", [])) == 1:
            return self.kind(parts[0])
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            target = self.schemas[name]
            if name.startswith("Paginated"):
                return f"a page of {self.kind(target['properties']['items']['items'])}"
            if target.get("properties") or "oneOf" in target:
                return f"[{name}](#{name.lower()})" if target.get("properties") else self.kind(target)
            return self.kind(target)
        if values := schema.get("enum"):
            return " ".join(f"`{value}`" for value in values if value is not None)
        if schema.get("type") == "array":
            return f"list of {self.kind(schema.get('items', {}))}"
        return str(schema.get("format") or schema.get("type") or "any")


def parameter(one: Node) -> str:
    schema = one.get("schema", {})
    values = " ".join(f"`{value}`" for value in schema.get("enum", []))
    kind = values or schema.get("type", "")
    name = f"`{one['name']}`" + (" (required)" if one.get("required") else "")
    return f"| {name} | {one['in']} | {kind} | {cell(one.get('description', ''))} |\n"


def meaning(field: Node) -> str:
    bounds = [f"{word} {field[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in field]
    text = cell(field.get("description", ""))
    return "; ".join(part for part in [text.rstrip("."), ", ".join(bounds)] if part)


def shown(value: Any) -> str:
    return "" if value is None else f"`{yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}`"


def cell(text: str) -> str:
    """On one line, and without what would end a table's cell."""
    return " ".join(text.replace("|", "\\|").split())


def page() -> str:
    """The page for the committed OpenAPI document."""
    return Document(yaml.safe_load((DOCS / "openapi.yaml").read_text())).page()


if __name__ == "__main__":
    TARGET.write_text(page())
