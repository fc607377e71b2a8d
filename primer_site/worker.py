"""`primer worker`: runners without a web server, for installs that share a database between processes."""

from __future__ import annotations

from typing import NoReturn

from primer_site.errors import Conflict


class OneProcess(Conflict):
    """This install keeps everything in SQLite, which one process works on."""

    code = "one_process"


def worker() -> NoReturn:
    """Refuses: sessions of an install on SQLite, the only database of this version, are run by its server itself."""
    raise OneProcess(
        "A worker needs a Postgres database that web processes and workers share. This install keeps its data in SQLite, "
        "which takes one writer at a time, and its server runs the sessions itself.",
        hint="primer up serves and runs sessions in one process; this version has no other mode",
    )
