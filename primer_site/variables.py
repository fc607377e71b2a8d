"""Every variable that a server reads, in one table: settings parse by it, and `docs/settings.md` is made from it. No Django."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from primer_site.errors import Invalid
from primer_site.home import setting

Kind = Literal["text", "flag", "integer", "number", "list", "rate", "choice"]
TARGET = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
RATE = re.compile(r"[1-9]\d*/(s|sec|m|min|h|hour|d|day)")


@dataclass(frozen=True, slots=True)
class Variable:
    """One `PRIMER_*` variable. `default` is written as one would write the variable itself; `shown` replaces it in the page.

    A `secret` may also come from the file that `<NAME>_FILE` names; a `test_only` one is not for operators.
    """

    name: str
    kind: Kind
    default: str
    text: str
    group: str
    shown: str = ""
    choices: tuple[str, ...] = ()
    secret: bool = False
    test_only: bool = False


DATA, ACCESS, LIMITS, SANDBOXES, KEEPING, LOGS, FIRST, TESTS = (
    "The install", "Who gets in", "Limits", "Sandboxes", "What is kept", "Logs and metrics", "The first start", "For tests",
)  # fmt: skip
VARIABLES: tuple[Variable, ...] = (
    Variable(
        "PRIMER_HOME", "text", "", "The one directory of this install: database, keys, static files.", DATA,
        shown="`$XDG_DATA_HOME/primer`, else `~/.local/share/primer`",
    ),
    Variable(
        "PRIMER_SECRET_KEY", "text", "", "The key of sign-ins and of sandbox channels.", DATA,
        shown="made once, in `secret-key` of the home", secret=True,
    ),
    Variable(
        "PRIMER_ENCRYPTION_KEYS", "text", "",
        "The keys of stored secrets, separated by spaces: the first one writes, all of them read.", DATA,
        shown="made once, in `encryption-keys` of the home", secret=True,
    ),
    Variable(
        "PRIMER_INSTANCE_ID", "text", "", "The label of everything that this install makes on an engine.", DATA,
        shown="made once, in `instance-id` of the home", secret=True,
    ),
    Variable("PRIMER_ALLOWED_HOSTS", "list", "localhost,127.0.0.1,[::1]", "Host names that requests may use.", ACCESS),
    Variable(
        "PRIMER_TRUSTED_ORIGINS", "list", "", "Origins that may send forms, where a proxy changes the host.", ACCESS
    ),
    Variable("PRIMER_HTTPS", "flag", "off", "Cookies travel over TLS only.", ACCESS),
    Variable("PRIMER_DEBUG", "flag", "off", "Shows internals to everybody; for work on Primer itself.", ACCESS),
    Variable("PRIMER_TOKEN_TTL_S", "integer", "2592000", "Seconds that a token lives which a login buys.", ACCESS),
    Variable("PRIMER_LOGIN_RATE", "rate", "10/min", "Sign-in attempts with one name from one address.", ACCESS),
    Variable(
        "PRIMER_LOGIN_ADDRESS_RATE", "rate", "60/min", "Sign-in attempts from one address, with any name.", ACCESS
    ),
    Variable("PRIMER_MAX_BODY_BYTES", "integer", "67108864", "The largest JSON body.", LIMITS),
    Variable("PRIMER_MAX_UPLOAD_BYTES", "integer", "1073741824", "The largest body of any kind.", LIMITS),
    Variable("PRIMER_MAX_WORKSPACES", "integer", "100", "Workspaces that one user may have at once; 0 is no limit.", LIMITS),
    Variable(
        "PRIMER_MAX_SESSIONS", "integer", "100",
        "Sessions of one user that may wait or run at once; 0 is no limit.", LIMITS,
    ),
    Variable(
        "PRIMER_DRAIN_S", "number", "10", "Seconds that a stop grants to running sessions and commands.", LIMITS
    ),
    Variable(
        "PRIMER_ALLOW_LOCAL", "flag", "off", "Whether the `local` provider, which isolates nothing, may be used.",
        SANDBOXES,
    ),
    Variable(
        "PRIMER_SOCKET_DIRS", "list", "/run,/var/run", "Directories in which a provider's engine socket may lie.",
        SANDBOXES, shown="`/run,/var/run`, the home",
    ),
    Variable(
        "PRIMER_LLM_HOSTS", "list", "",
        "Model endpoints, as `host:port`, that may be at a private address and may be spoken to without TLS.", SANDBOXES,
    ),
    Variable(
        "PRIMER_KEEP_DAYS", "integer", "90",
        "Days that ended sessions, the output of ended commands and audit entries are kept; 0 keeps them for ever.",
        KEEPING,
    ),
    Variable(
        "PRIMER_LOG_LEVEL", "choice", "INFO", "The least important lines that are written, to standard error.", LOGS,
        choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    ),
    Variable(
        "PRIMER_LOG_FORMAT", "choice", "text", "Lines of key=value, or one JSON object a line.", LOGS,
        choices=("text", "json"),
    ),
    Variable(
        "PRIMER_METRICS_TOKEN", "text", "",
        "A bearer token that opens `/metrics` and nothing else, 20 characters or more; admins' tokens open it too.", LOGS,
        shown="none", secret=True,
    ),
    Variable(
        "PRIMER_INIT_ADMIN_PASSWORD", "text", "", "The password of the first admin, for installs without a person.", FIRST,
        shown="made, printed once", secret=True,
    ),
    Variable(
        "PRIMER_INIT_TOKEN", "text", "", "A token of the first admin, 40 letters and digits or more.", FIRST, shown="none",
        secret=True,
    ),
    Variable(
        "PRIMER_REQUIRE", "list", "", "Services without which a test fails instead of being skipped.", TESTS, test_only=True,
    ),
    Variable(
        "PRIMER_CRASH_AT", "text", "", "The process kills itself at the point of that name.", TESTS, shown="none",
        test_only=True,
    ),
)  # fmt: skip
BY_NAME = {variable.name: variable for variable in VARIABLES}


def value(name: str) -> Any:
    """The parsed value of a variable of the table: str, bool, int, float or list[str]. `Invalid` names what it must be."""
    variable = BY_NAME[name]
    given = setting(name.removeprefix("PRIMER_")) if variable.secret else os.environ.get(name, "")
    text = given or variable.default
    try:
        return PARSERS[variable.kind](text) if not variable.choices else _chosen(text, variable.choices)
    except ValueError:
        words = WORDS[variable.kind] + ", ".join(variable.choices)
        shown = "something else" if variable.secret else repr(text)
        raise Invalid(f"{name} must be {words}; it is {shown}.") from None


def _flag(text: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError(text)


def _rate(text: str) -> str:
    if not RATE.fullmatch(text):
        raise ValueError(text)
    return text


def _chosen(text: str, choices: tuple[str, ...]) -> str:
    """The choice as the table spells it, whatever the case of `text`."""
    for choice in choices:
        if choice.lower() == text.lower():
            return choice
    raise ValueError(text)


PARSERS: dict[Kind, Callable[[str], Any]] = {
    "text": str,
    "choice": str,
    "flag": _flag,
    "integer": int,
    "number": float,
    "rate": _rate,
    "list": lambda text: [item.strip() for item in text.split(",") if item.strip()],
}
WORDS: dict[Kind, str] = {
    "text": "text",
    "choice": "one of ",
    "flag": f"one of {', '.join((*TRUE, *FALSE))}",
    "integer": "a whole number",
    "number": "a number",
    "rate": "a rate such as 10/min",
    "list": "names separated by commas",
}


def page() -> str:
    """`docs/settings.md`."""
    head = """\
# Settings

Every setting is an environment variable of the server's process; a change takes effect with the next start. A variable
marked with * may also come from the file that `<NAME>_FILE` names. This page is made from the code: `make docs`.
"""
    return "\n".join([head, *_tables()])


def _tables() -> Iterator[str]:
    groups = dict.fromkeys(variable.group for variable in VARIABLES if not variable.test_only)
    for group in groups:
        yield f"## {group}\n\n| variable | type | default | meaning |\n|---|---|---|---|"
        for variable in VARIABLES:
            if variable.group == group:
                kind = ", ".join(f"`{choice}`" for choice in variable.choices) or variable.kind
                default = variable.shown or (f"`{variable.default}`" if variable.default else "none")
                star = "*" if variable.secret else ""
                yield f"| `{variable.name}`{star} | {kind} | {default} | {variable.text} |"
        yield ""


def main() -> None:
    TARGET.write_text(page())


if __name__ == "__main__":
    main()
