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
