"""Our own command lines as this shell finds them: `primer up`, or `.venv/bin/primer up` where that name leads nowhere."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from functools import cache
from typing import Final

PROGRAMS: Final = ("primer", "primectl")
_ESCAPED: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "'": "\\'", "\\": "\\\\"}
# A command of ours in a sentence: its name, not part of a path or another word, and what it is to do.
_LINE: Final = re.compile(r"(?<![\w./-])(primer|primectl)(?= +[a-z])")


def as_invoked(text: str, only: tuple[str, ...] = PROGRAMS) -> str:
    """The text with each command line of ours as it can be typed here."""
    return _LINE.sub(lambda found: command(found[1]) if found[1] in only else found[1], text)


@cache
def command(name: str) -> str:
    """The name, if the shell finds by it the program beside the one that runs; else the path of that one."""
    if os.path.basename(sys.argv[0]) not in PROGRAMS or os.sep not in sys.argv[0]:
        return name  # run as a module, or inside another program
    mine = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), name)
    found = shutil.which(name)
    if not os.path.exists(mine) or (found is not None and os.path.samefile(found, mine)):
        return name
    near = os.path.relpath(mine)
    return shlex.quote(mine if near.startswith(os.pardir) else near)


def word(text: str) -> str:
    """A name that others chose as one word of a shell, in characters that can be seen, so that it can be copied.

    What has no shape of its own, a newline or a bidi mark, and a byte that is not UTF-8 are written as `$'\\xff'`, which
    bash and zsh read.
    """
    if text.isprintable():
        quoted = shlex.quote(text)
        return f"'{text}'" if quoted[0] == "=" else quoted  # zsh takes =ls for the path of ls
    return "$'" + "".join(_ESCAPED.get(one) or (one if one.isprintable() else _bytes(one)) for one in text) + "'"


def _bytes(one: str) -> str:
    data = one.encode("utf-8", "surrogateescape" if "\udc80" <= one <= "\udcff" else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)


def line(command: str, *names: str, options: str = "") -> str:
    """A command of ours over names that others chose; one that begins with a dash is not taken for an option."""
    words = [word(name) for name in names]
    if any(name.startswith("-") for name in names):
        return " ".join([command, *([options] if options else []), "--", *words])
    return " ".join([command, *words, *([options] if options else [])])
