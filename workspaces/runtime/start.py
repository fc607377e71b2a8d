"""What a start request may say: checked here, so that neither the keeper nor the kernel sees nonsense."""

from __future__ import annotations

import os

from . import protocol
from .paths import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class StartRequest:
    """A checked start request; Failure `invalid` names what is wrong."""

    def __init__(self, body: dict[str, Any], base_env: dict[bytes, bytes]) -> None:
        name = body.get("id")
        argv, env, cwd = body.get("argv"), body.get("env", {}), body.get("cwd", "")
        if not isinstance(name, str) or not 0 < len(name) <= 128:
            raise Failure("invalid", "the exec id is not a text of 1 to 128 characters")
        if not isinstance(argv, list) or not argv or not argv[0]:
            raise Failure("invalid", "argv is empty")
        if not isinstance(env, dict):
            raise Failure("invalid", "env is not an object")
        self.id = name
        self.argv = [_raw(text) for text in argv]
        self.cwd = _raw(cwd)
        self.env = dict(base_env)
        for name, value in env.items():
            if not name or "=" in name:
                raise Failure("invalid", "an environment name is empty or holds '='")
            self.env[_raw(name)] = _raw(value)
        self.stdin = bool(body.get("stdin"))
        self.timeout_s = float(body.get("timeout_s", 60.0))
        self.grace_s = min(30.0, max(0.0, float(body.get("grace_s", protocol.DEFAULT_GRACE_S))))
        self.output_kill_bytes = int(body.get("output_kill_bytes", 256 << 20))
        self.credit = int(body.get("credit", 0))


def _raw(text: object) -> bytes:
    if not isinstance(text, str) or "\0" in text:
        raise Failure("invalid", "an argument, name or path is not text or holds a NUL")
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        raise Failure("invalid", "an argument holds a character that cannot be encoded") from None
