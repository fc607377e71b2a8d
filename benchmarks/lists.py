"""What lists and look-ups of the API cost when there is much: `python -m benchmarks.lists [--rounds 15] [--rows 100000]`.

Two databases, one of 1,000 and one of 100,000 sessions, runs and deleted workspaces, are asked in turn by the same process
over a warm connection. Medians of processor time in ms (nothing here waits for anybody, and other work on
the machine does not count), their ratio, the time on the clock beside them, and the number of queries. Exit code 1 when a
target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SMALL = 1000
PAGE_MS, ONE_MS, RATIO = 100.0, 15.0, 1.5
BATCH = 5000


def routes(ids: dict[str, str]) -> dict[str, tuple[str, str, float]]:
    """name: (who asks, path, what it may cost in ms)."""
    whole = "limit=500"
    return {
        "sessions, first page of 50": ("alice", "sessions", PAGE_MS),
        "sessions, 500 a page": ("alice", f"sessions?{whole}", PAGE_MS),
        "sessions, oldest first": ("alice", "sessions?sort=created_at", PAGE_MS),
        "sessions, deep page": ("alice", f"sessions?cursor={ids['deep']}", PAGE_MS),
        "sessions of everybody (admin)": ("bob", "sessions", PAGE_MS),
        "sessions that failed": ("alice", "sessions?ended_reason=failed", PAGE_MS),
        "running sessions": ("alice", "sessions?status=running", PAGE_MS),
        "sessions of an agent": ("alice", "sessions?agent_id=runner-3", PAGE_MS),
        "sessions of a workspace": ("alice", f"sessions?workspace_id={ids['workspace']}", PAGE_MS),
        "workspaces, 500 a page": ("alice", f"workspaces?{whole}", PAGE_MS),
        "workspaces, first page": ("alice", "workspaces", PAGE_MS),
        "runs of a workspace, 500 a page": ("alice", f"workspaces/{ids['busy']}/exec?{whole}", PAGE_MS),
        "runs of a workspace": ("alice", f"workspaces/{ids['busy']}/exec", PAGE_MS),
        "runs of a session": ("alice", f"workspaces/{ids['busy']}/exec?session_id={ids['session']}", PAGE_MS),
        "one session": ("alice", f"sessions/{ids['session']}", ONE_MS),
        "one workspace": ("alice", f"workspaces/{ids['workspace']}", ONE_MS),
        "one run": ("alice", f"workspaces/{ids['busy']}/exec/{ids['exec']}", ONE_MS),
        "events of a session": ("alice", f"sessions/{ids['session']}/events", ONE_MS),
    }


class Store:
    """One database file with so many rows of each kind; alice owns them all."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path, self.rows = path, rows
        known = path.with_suffix(".json")
        with self.open():
            from django.core.management import call_command

            call_command("migrate", verbosity=0)
            if not known.exists():
                began = time.perf_counter()
                known.write_text(json.dumps(fill(rows)))
                print(f"{rows:,} of each made in {time.perf_counter() - began:.0f} s", flush=True)
            self.ids, self.tokens = json.loads(known.read_text())
        self.routes = routes(self.ids)

    @contextmanager
    def open(self) -> Iterator[None]:
        from django.db import connection

        connection.close()
        connection.settings_dict["NAME"] = str(self.path)
        yield
        connection.close()

    def ask(self, client: Any, name: str) -> tuple[float, float, int]:
        """Milliseconds of the processor and on the clock, and queries, of one request."""
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        person, path, _ = self.routes[name]
        headers = {"Authorization": f"Bearer {self.tokens[person]}"}
        with self.open():
            with CaptureQueriesContext(connection) as queries:  # it also opens what a warm connection has open
                client.get(f"/v1/{path}", headers=headers)
            # A token's last use is noted once a minute, which is no read. Counted now: the next request empties the list.
            reads = [one for one in queries.captured_queries if one["sql"].startswith("SELECT")]
            began = time.process_time(), time.perf_counter()
            answer = client.get(f"/v1/{path}", headers=headers)
            took = (time.process_time() - began[0]) * 1000, (time.perf_counter() - began[1]) * 1000
        assert answer.status_code == 200, (path, answer.content[:500])
        return *took, len(reads)


def fill(rows: int) -> tuple[dict[str, str], dict[str, str]]:
    """Makes people, engines and agents by the services, the many rows directly."""
    from tests.factories import make_admin, make_provider, make_template, make_user, make_workspace
    from tests.sessions.cast import make_agent

    alice, bob = make_user("alice"), make_admin("bob")
    template = make_template(provider=make_provider())
    agents = [make_agent(alice, f"runner-{number}") for number in range(5)]
    busy = make_workspace(alice, template)
    workspaces = [busy, *_workspaces(busy, SMALL - 1, rows)]
    first = _sessions(rows, agents, workspaces, alice)
    exec_id = _execs(rows, busy, first)
    return (
        {"session": first, "workspace": workspaces[5].slug, "busy": busy.slug, "exec": exec_id, "deep": _deep_cursor()},
        {person.username: _token(person) for person in (alice, bob)},
    )


def _token(person: Any) -> str:
    from accounts import services

    return str(
        services.token_create(
            user=person, name="bench", scope="admin" if person.is_admin else "read", expires_in_s=3600
        )[1]
    )


def _workspaces(like: Any, count: int, deleted: int) -> list[Any]:
    """Stopped ones that have been probed, and the rows of deleted ones, which throw-away sessions leave behind."""
    from django.utils import timezone

    from workspaces.models import Phase, Workspace

    own = ("id", "slug", "phase", "deleted_at", "confinement", "phases")
    fields = {field.name: getattr(like, field.name) for field in Workspace._meta.fields if field.name not in own}
    now = timezone.now()
    check = {
        "name": "network",
        "expected": "no route, loopback only",
        "observed": "no route, loopback only",
        "ok": True,
    }
    fields["confinement"] = {"verdict": "degraded", "checked_at": now.isoformat(), "checks": [check] * 12}
    fields["phases"] = [
        {"phase": phase, "at": now.isoformat(), "reason": ""} for phase in ("pending", "starting", "running", "stopped")
    ]
    live = [Workspace(**fields, slug=f"ws-{number:016x}", phase=Phase.STOPPED) for number in range(count)]
    found = list(Workspace.objects.bulk_create(live, batch_size=BATCH))
    gone = Workspace.objects.create(**{**fields, "phase": Phase.DELETING, "deleted_at": now}, slug="ws-like")
    copies(gone, deleted, slug="printf('ws-f%015x', n)")
    return found


def _sessions(rows: int, agents: list[Any], workspaces: list[Any], owner: Any) -> str:
    from agents.serializers import agent_shown
    from sessions_app.models import AgentSession, EndedReason, SessionEvent, Status

    now = timezone_now()
    like = AgentSession.objects.create(
        slug="sess-like", owner=owner, agent=agents[0], workspace=workspaces[5], agent_spec=agent_shown(agents[0]),
        initial_instructions="Run this code: print(42)", status=Status.ENDED, ended_reason=EndedReason.COMPLETED,
        ended_at=now, answer="The snippet printed:\n42", last_seq=2,
    )  # fmt: skip
    events = [
        SessionEvent.objects.create(session=like, seq=seq, kind=kind, data={"text": "x" * 200})
        for seq, kind in ((1, "session_status"), (2, "user_message"))
    ]
    reasons = [*[EndedReason.COMPLETED.value] * 9, EndedReason.FAILED.value]
    copies(
        like, rows, slug="printf('sess-%016x', n)", created_at=ago(now), agent_id=any_of([one.pk for one in agents], 4),
        workspace_id=f"iif(n % 20, {any_of([one.pk for one in workspaces], 8)}, {workspaces[5].pk})",
        ended_reason=any_of(reasons, 12),
    )  # fmt: skip
    first = AgentSession.objects.get(slug=f"sess-{0:016x}").pk
    for event in events:
        copies(event, rows // 10, session_id=f"{first} + n * 10")
    like.delete()
    return f"sess-{rows // 20 * 10:016x}"  # a multiple of ten, which has events


def _execs(rows: int, workspace: Any, session: str) -> str:
    from workspaces.models import Exec, ExecState

    now = timezone_now()
    asked = {
        "argv": ["sh", "-c", "echo 42"],
        "cwd": "",
        "timeout_s": 60,
        "background": False,
        "max_output_bytes": 1 << 20,
    }
    evidence = {"oom_kill": 0, "pids_max": 0, "disk": None, "limit": None, "shared": False, "cancelled_by": None}
    like = Exec.objects.create(
        slug="exec-like", workspace=workspace, request=asked, state=ExecState.ENDED, ended_by="exit", exit_code=0,
        ended_at=now, stdout_bytes=3, duration_ms=12.5, evidence=evidence,
    )  # fmt: skip
    of_session = f"iif(n % 20, printf('sess-%016x', n), '{session}')"
    copies(like, rows, slug="printf('exec-%016x', n)", created_at=ago(now), session_id=of_session)
    like.delete()
    return f"exec-{rows // 3:016x}"


def copies(like: Any, count: int, **columns: str) -> None:
    """Stores `count` copies of a row, number `n` (from 0) with these columns as SQL (SQLite's).

    Objects of so many rows would take minutes to make.
    """
    from django.db import connection

    names = [field.column for field in like._meta.concrete_fields if not field.primary_key]
    chosen = ", ".join(columns.get(name, f'kept."{name}"') for name in names)
    table, quoted = like._meta.db_table, ", ".join(f'"{name}"' for name in names)
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers LIMIT {count}) "
            f'INSERT INTO "{table}" ({quoted}) SELECT {chosen} FROM numbers, "{table}" kept WHERE kept.id = {like.pk}'
        )


def timezone_now() -> Any:
    from django.utils import timezone

    return timezone.now()


def ago(now: Any) -> str:
    """SQL: `n` seconds before `now`, as Django writes a moment."""
    return f"strftime('%Y-%m-%d %H:%M:%f000', '{now:%Y-%m-%d %H:%M:%S}', -n || ' seconds')"


def any_of(values: list[Any], shift: int) -> str:
    """SQL: one of the values; which one looks like chance, and other for each `shift`."""
    return f"json_extract('{json.dumps(values)}', '$[' || ((n * 2654435761 >> {shift}) % {len(values)}) || ']')"


def _deep_cursor() -> str:
    """The cursor of a page in the middle of the list."""
    from primer_site.pagination import Order
    from sessions_app.models import AgentSession

    rows = AgentSession.objects.order_by("-created_at", "-pk")
    return Order("created_at", "pk", True).cursor(rows[rows.count() // 2])


def measure(small: Store, large: Store, rounds: int) -> bool:
    from django.test import Client

    client, good = Client(headers={"host": "127.0.0.1"}), True
    print(f"{'':36}{'1,000':>9}{large.rows:>10,}  ratio   clock  queries")
    for name, (_, _, limit) in large.routes.items():
        for store in (small, large):
            store.ask(client, name)  # what is imported and compiled once
        pairs = [(small.ask(client, name), large.ask(client, name)) for _ in range(rounds)]
        times = [statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
        clock = statistics.median(pair[1][1] for pair in pairs)
        ratio = statistics.median(b[0] / a[0] for a, b in pairs)
        queries = sorted({one[2] for pair in pairs for one in pair})
        wrong = {"time": times[1] > limit, "ratio": ratio > RATIO, "queries": len(queries) > 1}
        missed = [word for word, bad in wrong.items() if bad]
        good = good and not missed
        row = f"{name:36}{times[0]:7.1f}ms{times[1]:8.1f}ms{ratio:7.2f}{clock:6.0f}ms  {queries[-1]}"
        print(f"{row} {' '.join(missed)}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each side; medians are shown")
    parser.add_argument("--rows", type=int, default=100_000, help="sessions and runs of the large database")
    parser.add_argument("--directory", help="keeps the databases here, for the next time")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="primer-bench-") as scratch:
        folder = asked.directory or scratch
        os.environ.update(PRIMER_HOME=folder, DJANGO_SETTINGS_MODULE="primer_site.settings", PRIMER_LOG_LEVEL="error")
        import django

        from primer_site.home import prepare

        prepare()
        (Path(folder) / "static").mkdir(exist_ok=True)
        django.setup()
        import logging

        logging.disable(logging.INFO)
        stores = [Store(Path(folder) / f"{rows}.sqlite3", rows) for rows in (SMALL, asked.rows)]
        return 0 if measure(stores[0], stores[1], asked.rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
