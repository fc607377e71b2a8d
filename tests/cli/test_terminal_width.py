"""What a terminal of 80 columns shows: nothing wider, nothing left out where it cannot be asked for again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wcwidth import wcswidth

from cli.tables import COLUMNS
from tests.cli.conftest import Cli
from tests.cli.fake import NOW, WS, Answer, Primer

DIGEST = "sha256:" + "0123456789abcdef" * 4
WHY = "the image was found, but its entry point could not be started " * 4


@pytest.fixture(autouse=True)
def workspace(primer: Primer) -> dict[str, Any]:
    primer.store["workspaces"][WS] = {
        "id": WS,
        "template_id": "code-sandbox",
        "phase": "failed",
        "phase_detail": WHY.strip(),
        "boot_lines": ["x" * 300, "日本語" * 50],
        "image_digest": DIGEST,
        "labels": {"note": "word " * 60},
        "phases": [{"phase": "pending", "at": NOW}],
        "applied": {"limits": {"memory": {"asked": "a" * 90, "applied": 1, "enforced": "enforced"}}},
        "confinement": {
            "verdict": "failed",
            "checks": [{"name": "socket", "expected": "no " * 40, "observed": "y" * 100, "ok": False}],
        },
    }
    return primer.store["workspaces"][WS]


def test_describe_fits_the_terminal(cli: Cli) -> None:
    lines = cli("describe", "workspace", WS, out_tty=True).text.splitlines()
    assert [line for line in lines if wcswidth(line) > 80] == []


def test_what_describe_wraps_is_all_there(cli: Cli) -> None:
    text = cli("describe", "workspace", WS, out_tty=True).text
    squeezed = "".join(text.split())
    assert DIGEST in squeezed
    assert "".join(WHY.split()) in squeezed
    assert "x" * 300 in squeezed
    assert "日本語" * 50 in squeezed


def test_a_pipe_gets_describe_in_whole_lines(cli: Cli) -> None:
    text = cli("describe", "workspace", WS).text
    assert f"image_digest: {DIGEST}\n" in text
    assert f"reason: {WHY.strip()}\n" in text
    assert "y" * 100 in text


def test_next_steps_stay_in_one_piece(cli: Cli, primer: Primer) -> None:
    name = "a" * 63
    primer.store["agents"][name] = {"id": name, "model": {"provider_id": "scripted"}}
    text = cli("describe", "agent", name, out_tty=True).text
    assert f"  primectl session run WORKSPACE --agent {name} -i TEXT\n" in text


def test_one_long_name_makes_no_other_row_long(cli: Cli, primer: Primer) -> None:
    long = "n" * 255
    items = [
        {"path": name, "kind": "file", "size_bytes": 1, "modified_at": NOW} for name in (long, "short", "日本.txt")
    ]
    primer.on("GET", f"/v1/workspaces/{WS}/files", Answer(200, {"items": items, "next_cursor": None}))
    shown = cli("workspace", "files", "ls", WS, out_tty=True).text.splitlines()
    assert [len(line) > 80 for line in shown] == [False, True, False, False]
    assert shown[1].startswith(f"{long}  file")
    assert shown[2].index("file") == shown[0].index("KIND")
    piped = cli("workspace", "files", "ls", WS).text.splitlines()
    assert len({line.find("file") for line in piped[1:3]}) == 1


LONG = "日本語 and more, " * 8
OTHER = "long-but-plain-name-of-something-else-that-goes-on-and-on"


def long_values(name: str) -> dict[str, Any]:
    """An object with whatever any table shows, longer than a terminal is wide."""
    numbers = dict.fromkeys(("max_turns", "timeout_s", "input_tokens", "output_tokens"), 10**12)
    names = ("template_id", "agent_id", "workspace_id", "provider_id", "provider", "owner", "name", "phase", "status",
             "ended_reason", "phase_reason", "description")  # fmt: skip
    times = ("created_at", "last_activity_at", "expires_at", "started_at", "ended_at")
    return {
        **dict.fromkeys(names, OTHER),
        **dict.fromkeys(times, NOW),
        "id": name,
        "tools": [LONG] * 3,
        "model": {"provider_id": OTHER, "model_name": LONG},
        "backend": {"kind": OTHER, "image": LONG, "network": {"egress": OTHER}},
        "config": {"runtime": OTHER, "default_model": LONG, "base_url": LONG, "connection": {"kind": OTHER}},
        "limits": numbers,
        "usage": numbers,
        "channel": {"kind": OTHER},
        "ended_detail": {"message": LONG},
        "confinement": {"verdict": OTHER},
    } | ({"status": {"health": OTHER, "checked_at": NOW, "engine": {"version": LONG}}} if "provider" in name else {})


@pytest.mark.parametrize("style", ["table", "wide"])
@pytest.mark.parametrize("kind", sorted(COLUMNS))
@pytest.mark.parametrize("size", [20, 60])
def test_every_table_fits_a_terminal_and_is_whole_on_a_pipe(
    cli: Cli, primer: Primer, kind: str, style: str, size: int
) -> None:
    name = f"{kind.replace('_', '-')}-".ljust(size, "x")
    primer.store[f"{kind}s"] = {name: long_values(name), f"{name}y": long_values(f"{name}y")}
    result = cli("get", kind, "-o", style, out_tty=True, err_tty=True)
    shown = result.text.splitlines()
    assert len(shown) == 3
    assert [line for line in shown if wcswidth(line) > 80] == []
    assert [line.split()[0] for line in shown] == ["ID", name, f"{name}y"]
    header, *rows = cli("get", kind, "-o", style).text.splitlines()
    narrow, more = COLUMNS[kind]
    titles = [column.title for column in (*narrow, *(more if style == "wide" else ()))]
    assert header.split() == titles
    assert all("…" not in row for row in rows)
    left_out = titles[len(shown[0].split()) :]
    assert (f"no room for {', '.join(left_out)}: " in result.err) == bool(left_out)


def test_the_wide_table_has_local_times_where_there_is_room_for_them(cli: Cli, primer: Primer) -> None:
    primer.store["agents"]["a"] = {"id": "a", "created_at": NOW}
    line = ("get", "agent", "a", "-o", "wide", "--utc")
    assert "2026-02-01 10:00:00+00:00" in cli(*line).text
    assert "2026-02-01 10:00:00+00:00" in cli(*line, out_tty=True, width=200).text
    assert "10:00:00" not in cli(*line, out_tty=True).text


@pytest.mark.parametrize(
    "argv", [["help", "exit-codes"], ["api-resources"], ["config", "view", "--sources"], ["context", "list"]]
)
def test_tables_of_words_go_on_below_themselves(cli: Cli, argv: list[str], tmp_path: Path) -> None:
    place = tmp_path / "config" / "config.yaml"
    place.parent.mkdir()
    place.write_text(f"contexts:\n  work: {{server: 'https://{'primer.' * 14}example', token: 't'}}\n")
    shown = cli(*argv, out_tty=True).text
    assert [line for line in shown.splitlines() if wcswidth(line) > 80] == []
    assert "…" not in shown
    piped = cli(*argv).text
    assert sorted("".join(piped.split())) == sorted("".join(shown.split()))


def test_the_audit_log_shows_ids_whole_that_nothing_takes_cut(cli: Cli, primer: Primer) -> None:
    pk = "4ad2e284-9843-4106-935f-3eee35100615"
    entry = {"at": NOW, "actor": "administrator", "action": "session.create", "address": "192.168.100.200"}
    items = [{**entry, "object_kind": "token", "object_id": pk}]
    primer.on("GET", "/v1/audit", Answer(200, {"items": items, "next_cursor": None}))
    shown = cli("audit", out_tty=True).text.splitlines()
    assert f" token/{pk} " in shown[1]
    assert max(map(len, shown)) <= 80
