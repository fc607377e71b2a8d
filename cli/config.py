"""Where and who: the context file, and flag > environment > context > default for each value."""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cli.errors import CliError, Exit, UsageError
from cli.text import duration

DEFAULT_SERVER = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT = "30s"
CONTEXT_KEYS = ("server", "token", "template", "output", "ca-file")
_TOP_KEYS = ("current-context", "contexts")


@dataclass(frozen=True, slots=True)
class Value:
    """A setting and where it came from, in words."""

    text: str
    source: str


@dataclass
class ConfigFile:
    """The file as it is on disk: `contexts` maps a name to its keys."""

    path: Path
    current: str = ""
    contexts: dict[str, dict[str, str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, env: Mapping[str, str]) -> ConfigFile:
        """Reads the file if there is one; raises UsageError when it is not what this program writes."""
        path = config_path(env)
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return cls(path)
        config = cls(path, warnings=[*_mode_warnings(path, found), *_directory_warnings(path, env)])
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError(f"{path}: cannot be read: {_reason(exc)}") from exc
        config.current, config.contexts = _parsed(path, text)
        return config

    def save(self) -> None:
        """Writes the file as a whole or not at all, 0600 in a 0700 directory. A symlink is followed to its file."""
        import tempfile

        import yaml

        body: dict[str, Any] = {"current-context": self.current, "contexts": self.contexts}
        text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True)
        target = Path(os.path.realpath(self.path))
        try:
            if not target.parent.is_dir():
                target.parent.mkdir(parents=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=".config-")  # mkstemp makes it 0600
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                Path(name).replace(target)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as exc:
            raise CliError(f"{self.path}: cannot be written: {_reason(exc)}") from exc


@dataclass(frozen=True)
class Settings:
    """What one call goes by. `token` is the value itself; `token_note` says why there is none."""

    context: Value
    server: Value
    token: Value
    token_note: str
    ca_file: Value
    template: Value
    output: Value
    request_timeout: Value

    @property
    def timeout_s(self) -> float:
        return duration(self.request_timeout.text, "--request-timeout")


def config_path(env: Mapping[str, str]) -> Path:
    if env.get("PRIMECTL_CONFIG"):
        return Path(env["PRIMECTL_CONFIG"])
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base) / "primectl" / "config.yaml"


def server_url(text: str) -> str:
    """A server's address without its last slash; raises UsageError for anything but http(s)://HOST[:PORT][/PATH]."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        raise UsageError(f'"{text}" is not a server address: {exc}') from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f'"{text}" is not a server address', hint="write http://HOST:PORT or https://HOST")
    if parts.username is not None or parts.query or parts.fragment or port == 0:
        raise UsageError(f'"{text}": only scheme, host, port and path belong into a server address')
    if any(ord(c) <= 0x20 or ord(c) == 0x7F for c in text):
        raise UsageError("a server address holds no blanks and no control characters")
    return text.rstrip("/")


def is_loopback(server: str) -> bool:
    """Whether the address is of this machine by itself: a name that merely begins like one belongs to anybody."""
    host = urlsplit(server).hostname or ""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def resolve(config: ConfigFile, flags: Mapping[str, Any], env: Mapping[str, str]) -> Settings:
    """Each value from the first place that has it; a context's token goes to that context's server only."""
    name = _first(
        (flags.get("context"), "--context"),
        (env.get("PRIMECTL_CONTEXT"), "PRIMECTL_CONTEXT"),
        (config.current, str(config.path)),
    )
    context = config.contexts.get(name.text, {})
    if name.text and name.text not in config.contexts and name.source in ("--context", "PRIMECTL_CONTEXT"):
        known = ", ".join(config.contexts) or "none"
        raise CliError(f"context {name.text} not found", exit=Exit.NOT_FOUND, hint=f"there are: {known}")

    def pick(flag: str, variable: str, key: str, default: str = "") -> Value:
        return _first(
            (flags.get(flag), "--" + flag.replace("_", "-")),
            (env.get(variable) if variable else None, variable),
            (context.get(key), f"context {name.text}"),
            (default, "default"),
        )

    server = pick("server", "PRIMECTL_SERVER", "server", DEFAULT_SERVER)
    server = Value(server_url(server.text), server.source)
    token, note = _token(pick("token", "PRIMECTL_TOKEN", "token"), server, context, name.text, env)
    return Settings(
        context=name,
        server=server,
        token=token,
        token_note=note,
        ca_file=pick("ca_file", "PRIMECTL_CA_FILE", "ca-file"),
        template=pick("template", "", "template", "default"),
        output=pick("output", "PRIMECTL_OUTPUT", "output"),
        request_timeout=pick("request_timeout", "PRIMECTL_REQUEST_TIMEOUT", "", DEFAULT_TIMEOUT),
    )


def _token(
    found: Value, server: Value, context: Mapping[str, str], name: str, env: Mapping[str, str]
) -> tuple[Value, str]:
    if found.source != f"context {name}":
        return found, ""
    home = server_url(context.get("server") or DEFAULT_SERVER)
    if server.text != home:
        # Otherwise `--server` of somebody else's choice would be handed the key of ours.
        return Value("", "none"), f"the token of context {name} belongs to {home} and is not sent elsewhere"
    return Value(_revealed(found.text, name, env), found.source), ""


def _revealed(text: str, name: str, env: Mapping[str, str]) -> str:
    """The token behind `env:NAME` or `file:PATH`, or the text itself."""
    if text.startswith("env:"):
        value = env.get(text[4:], "")
        if not value:
            raise CliError(f"context {name}: the variable {text[4:]} is not set", exit=Exit.DENIED)
        return value
    if text.startswith("file:"):
        try:
            return Path(text[5:]).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise CliError(f"context {name}: {text[5:]}: cannot be read: {_reason(exc)}", exit=Exit.DENIED) from exc
    return text


def masked(token: str) -> str:
    """A token as it may be shown: references as they are, values by their last four characters."""
    if not token or token.startswith(("env:", "file:")):
        return token
    return "****" + token[-4:] if len(token) >= 16 else "****"


def _first(*candidates: tuple[Any, str]) -> Value:
    for text, source in candidates:
        if text:
            return Value(str(text), source)
    return Value("", "none")


def _parsed(path: Path, text: str) -> tuple[str, dict[str, dict[str, str]]]:
    import yaml

    try:
        body = yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise UsageError(f"{path}: is not YAML: {' '.join(str(exc).split())[:200]}") from exc
    contexts = body.get("contexts") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(contexts if contexts is not None else {}, dict):
        raise UsageError(f"{path}: is not a primectl configuration", hint="move it away, then: primectl login URL")
    for key in body:
        if key not in _TOP_KEYS:
            raise UsageError(f"{path}: unknown key {key}", hint="it holds current-context and contexts")
    result: dict[str, dict[str, str]] = {}
    for name, values in (contexts or {}).items():
        if not isinstance(values, dict) or any(key not in CONTEXT_KEYS for key in values):
            raise UsageError(f"{path}: context {name}: the keys are {', '.join(CONTEXT_KEYS)}")
        result[str(name)] = {str(k): str(v) for k, v in values.items() if v is not None}
    return str(body.get("current-context") or ""), result


def _mode_warnings(path: Path, found: os.stat_result) -> list[str]:
    warnings = []
    if stat.S_ISLNK(found.st_mode):
        warnings.append(f"{path} is a symlink")
        try:
            found = path.stat()
        except OSError:
            return warnings
    if found.st_mode & 0o077:
        warnings.append(f"{path} can be read by others (mode {found.st_mode & 0o777:04o}): chmod 600 {path}")
    return warnings


def _directory_warnings(path: Path, env: Mapping[str, str]) -> list[str]:
    """Whoever writes in the directory can put another file there. Our own is private; one that was named may be shared."""
    try:
        mode = path.parent.stat().st_mode
    except OSError:
        return []
    mask = 0o022 if env.get("PRIMECTL_CONFIG") else 0o077
    if not mode & mask or mode & stat.S_ISVTX:
        return []
    word = "written" if mask == 0o022 else "opened"
    return [f"{path.parent} can be {word} by others (mode {mode & 0o777:04o}): chmod 700 {path.parent}"]


def _reason(exc: Exception) -> str:
    return getattr(exc, "strerror", None) or "it is not UTF-8 text"
