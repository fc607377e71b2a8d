"""What the fake server makes of the secrets in an env, as the API promises it."""

from __future__ import annotations

from typing import Any


def with_stored_env(item: dict[str, Any], body: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """The env after a PUT or PATCH, as a read shows it: secrets are masked, stay when left out, go with null."""
    if "env" not in item or (not whole and "env" not in body):
        return {}
    env = {name: value for name, value in item["env"].items() if isinstance(value, dict)} | body.get("env", {})
    shown = {name: value for name, value in env.items() if value is not None}
    for name, value in shown.items():
        if isinstance(value, dict) and "secret" in value:
            shown[name] = {"set": True, "last4": value["secret"][-4:]}
    return {"env": shown}
