"""Which settings are secrets, how they leave a body for the sealed column, and what reads show of them. Pure but for `mask`."""

from __future__ import annotations

import copy
import hmac
from typing import Any

from primer_site.errors import FieldError, Invalid
from primer_site.vault import mask
from workspaces.fields import size_problem

Path = tuple[str, ...]
CONFIG_SECRETS: dict[str, tuple[Path, ...]] = {
    "container": (("connection", "tls", "key"),),
    "anthropic": (("api_key",),),
    "openai": (("api_key",),),
}


def split_config(
    kind: str, config: dict[str, Any], old_config: dict[str, Any], old_secrets: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config without secrets, and the secrets in the same shape.

    A secret that is left out or still masked stays as it was, None removes it; another endpoint drops what was stored,
    so that nobody sends a key to a host of their choice.
    """
    config = copy.deepcopy(config)
    secrets: dict[str, Any] = {}
    moved = endpoint_of(config) != endpoint_of(old_config)
    for path in CONFIG_SECRETS.get(kind, ()):
        holder = _get(config, path[:-1])
        if not isinstance(holder, dict):
            continue
        asked = holder.pop(path[-1], {"set": True})
        value = asked if isinstance(asked, str) else None
        if isinstance(asked, dict) and not moved:
            value = _get(old_secrets, path)
        if value:
            _put(secrets, path, value)
    return config, secrets


def masked_config(kind: str, config: dict[str, Any], secrets: dict[str, Any]) -> dict[str, Any]:
    shown = copy.deepcopy(config)
    for path in CONFIG_SECRETS.get(kind, ()):
        if isinstance(_get(shown, path[:-1]), dict):
            _put(shown, path, mask(_get(secrets, path)))
    return shown


def split_env(env: dict[str, Any], old_secrets: dict[str, str]) -> tuple[dict[str, str | None], dict[str, str]]:
    """`{NAME: text | {secret: text} | {set: true} | None}` as the plain column (None stands for a secret) and the secrets.

    A secret that is left out or masked stays as it was, None removes a name; text that is left out is gone.
    """
    plain: dict[str, str | None] = {}
    secrets: dict[str, str] = {}
    for name, value in env.items():
        if value is None:
            continue
        if isinstance(value, str):
            plain[name] = value
        elif "secret" in value:
            plain[name], secrets[name] = None, value["secret"]
        elif name in old_secrets:
            plain[name], secrets[name] = None, old_secrets[name]
        else:
            raise Invalid("env is not valid.", errors=[FieldError(f"env.{name}", "is masked, and no value is stored")])
    kept = {name: text for name, text in old_secrets.items() if name not in env}
    plain, secrets = plain | dict.fromkeys(kept), secrets | kept
    if kept and (problem := size_problem({name: secrets.get(name, text) or "" for name, text in plain.items()})):
        raise Invalid("env is not valid.", errors=[FieldError("env", f"{problem}, stored secrets included")])
    return plain, secrets


def masked_env(env: dict[str, str | None], secrets: dict[str, str]) -> dict[str, Any]:
    return {name: mask(secrets.get(name)) if value is None else value for name, value in env.items()}


def env_changes(asked: dict[str, Any], env: dict[str, str | None], secrets: dict[str, str]) -> list[str]:
    """The names whose value a whole new env would change: a secret that is left out or masked stays, None removes."""
    gone = [name for name, text in env.items() if text is not None and name not in asked]
    return sorted([*gone, *(name for name, value in asked.items() if _differs(name, value, env, secrets))])


def _differs(name: str, value: Any, env: dict[str, str | None], secrets: dict[str, str]) -> bool:
    if name not in env:
        return value is not None
    if env[name] is not None or not isinstance(value, dict):
        return bool(value != env[name]) or env[name] is None
    given = value.get("secret")
    return given is not None and not hmac.compare_digest(given.encode(), secrets.get(name, "").encode())


def endpoint_of(config: dict[str, Any]) -> tuple[Any, ...]:
    """What names the engine, or the model's endpoint, in a config: another one is another engine."""
    connection = config.get("connection") or {}
    where = (connection.get("kind"), connection.get("url"), connection.get("socket_path"), config.get("root_path"))
    return (*where, config.get("base_url"))


def _get(tree: Any, path: Path) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
