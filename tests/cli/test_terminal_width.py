"""What a terminal of 80 columns shows: nothing wider, nothing left out where it cannot be asked for again."""

from __future__ import annotations

from typing import Any

import pytest
from wcwidth import wcswidth

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
