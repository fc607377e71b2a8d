"""`serve` or `bridge`, told apart before anything heavy is imported."""

from __future__ import annotations

import os

DEFAULT_SOCKET = "@primer-runtime"
USAGE = "usage: runtime.pyz [serve [--workdir DIR]|bridge] [--socket @NAME|PATH]\n"


def main(arguments: list[str]) -> int:
    """Without a word it serves: that is the container's command. Returns the exit code."""
    mode, options = "serve", {"--socket": DEFAULT_SOCKET, "--workdir": ""}
    words = list(arguments)
    if words and not words[0].startswith("-"):
        mode = words.pop(0)
    while len(words) >= 2 and words[0] in options:
        options[words[0]] = words[1]
        del words[:2]
    if words or mode not in ("serve", "bridge"):
        os.write(2, USAGE.encode())
        return 64
    if mode == "bridge":
        from .bridge import bridge

        return bridge(options["--socket"])
    from .server import serve

    return serve(options["--socket"], options["--workdir"] or os.getcwd())
