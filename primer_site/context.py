"""The CLI context `local`, so that `primectl` works right after `primer up`."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cli.config import ConfigFile
from cli.errors import CliError

NAME = "local"


@dataclass(frozen=True, slots=True)
class Written:
    """`current` tells whether a bare `primectl` uses the context; `note` is a sentence when it was left alone."""

    text: str
    current: bool
    note: str = ""
    fix: str = ""


def ensure(url: str, *, replace: bool) -> Written:
    """Points the context at `url` with a token that works; one of another server is replaced only when `replace` is set."""
    from primer_site import people

    try:
        config = ConfigFile.load(os.environ)
        before = config.contexts.get(NAME, {})
        ours = _is_ours(before.get("token", ""))
        if before and not ours and before.get("server") != url and not replace:
            note = f"context {NAME} belongs to {before.get('server')} and was left alone"
            return Written("", False, note, "primer up --yes replaces it")
        if not (ours and before.get("server") == url):
            token = before["token"] if ours else people.operator_token(str(config.path.resolve()))
            config.contexts[NAME] = {**before, "server": url, "token": token}
            config.current = config.current or NAME
            config.save()
    except CliError as exc:
        return Written("", False, "; ".join(exc.lines), "correct or remove the file, then run primer up again")
    return Written(f"{NAME} in {config.path}", config.current == NAME)


def _is_ours(token: str) -> bool:
    """Whether the stored token opens this install's own database."""
    from accounts.authentication import BadToken, token_user

    if not token:
        return False
    try:
        token_user(token)
    except BadToken:
        return False
    return True
