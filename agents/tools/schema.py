"""Checks a model's arguments against a tool's schema. Model output is hostile: nothing is guessed, filled in or converted."""

from __future__ import annotations

from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
}


def problems(value: Any, schema: dict[str, Any]) -> list[str]:
    """What is wrong with `value`, one sentence part each; [] when it fits.

    Knows what the schemas of our tools use: object, string, integer, boolean, required, closed properties, minimum,
    maximum, minLength, maxLength (bytes in UTF-8), enum of texts.
    """
    if not isinstance(value, dict):
        return [f"the arguments must be a JSON object, not {_kind(value)}"]
    known = schema["properties"]
    found = [f"{name} is required" for name in schema["required"] if name not in value]
    for name, item in value.items():
        if name not in known:
            found.append(f"{_plain(name)} is not an argument of this tool (it takes {', '.join(known)})")
        elif problem := _problem(item, known[name]):
            found.append(f"{name} {problem}")
    return found


def _problem(item: Any, rule: dict[str, Any]) -> str:
    kind = rule["type"]
    # bool is an int in Python, not in JSON.
    if not isinstance(item, TYPES[kind]) or (isinstance(item, bool) and kind != "boolean"):
        return f"must be a JSON {kind}, not {_kind(item)}"
    if isinstance(item, str):
        return _bad_text(item, rule)
    return _out_of_range(item, rule) if kind == "integer" else ""


def _out_of_range(item: Any, rule: dict[str, Any]) -> str:
    least, most = rule.get("minimum"), rule.get("maximum")
    if (least is not None and item < least) or (most is not None and item > most):
        return f"must be from {least} to {most}"
    return ""


def _bad_text(item: str, rule: dict[str, Any]) -> str:
    if "\x00" in item:
        return "must not contain NUL"
    try:
        size = len(item.encode("utf-8"))
    except UnicodeEncodeError:
        return "must not contain a lone surrogate"
    if size < rule.get("minLength", 0):
        return "must not be empty"
    if "enum" in rule and item not in rule["enum"]:
        return f"must be one of {', '.join(rule['enum'])}"
    most = rule.get("maxLength")
    return f"has {size} bytes; at most {most} are taken" if most is not None and size > most else ""


def _kind(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _plain(name: object) -> str:
    return str(name)[:60].encode("unicode_escape").decode()
