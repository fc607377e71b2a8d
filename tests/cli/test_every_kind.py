"""create, apply, diff, wait, edit and watch against every kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.kinds import KINDS, Kind
from tests.cli.conftest import Cli
from tests.cli.fake import WS, Primer
from tests.cli.test_generic_verbs import ITEMS, everything

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
__all__ = ["everything"]  # the fixture that fills the server

SPECS: dict[str, dict[str, Any]] = {
    "workspace_provider": {"id": "docker-local", "provider": "local", "config": {"kind": "local", "root_path": "/x"}},
    "workspace_template": {"id": "code-sandbox", "provider_id": "p", "backend": {"kind": "local"}},
    "agent": {"id": "code-runner", "model": {"provider_id": "scripted"}},
    "llm_provider": {"id": "scripted", "provider": "scripted", "config": {"kind": "scripted"}},
    "workspace": {"template_id": "code-sandbox"},
    "session": {"agent_id": "code-runner", "workspace_id": WS, "initial_instructions": "x"},
}


@every_kind
def test_create_apply_and_diff_take_every_kind(cli: Cli, primer: Primer, kind: Kind) -> None:
    primer.store[kind.plural].clear()
    spec = SPECS[kind.name]
    text = json.dumps({"kind": kind.name, "spec": spec}).encode()
    name = ITEMS[kind.name]["id"]
    dry = cli("create", "-f", "-", "--dry-run=client", stdin=text)
    assert (dry.code, dry.text.split()[0]) == (0, kind.name if kind.prefix else f"{kind.name}/{name}")
    assert cli("diff", "-f", "-", stdin=text).code == 1
    assert primer.store[kind.plural] == {}
    assert cli("create", "-f", "-", stdin=text).text == f"{kind.name}/{name} created\n"
    primer.store[kind.plural].clear()
    assert cli("apply", "-f", "-", stdin=text).text == f"{kind.name}/{name} created\n"
    if not kind.prefix:
        assert cli("apply", "-f", "-", stdin=text).text == f"{kind.name}/{name} unchanged\n"
        assert cli("diff", "-f", "-", stdin=text).code == 0
        assert cli("delete", "-f", "-", stdin=text).text == f"{kind.name}/{name} deleted\n"


@every_kind
def test_wait_edit_and_watch_take_every_kind(cli: Cli, primer: Primer, kind: Kind) -> None:
    name = ITEMS[kind.name]["id"]
    assert cli("wait", f"{kind.short}/{name}", "--for=jsonpath={.labels.team}=red").code == 0
    changed = cli("edit", kind.name, name, EDITOR="sed -i s/red/blue/")
    assert (changed.code, changed.text) == (0, f"{kind.name}/{name} configured\n"), changed.err
    assert primer.store[kind.plural][name]["labels"] == {"team": "blue"}

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    cli.clock.sleep = stop  # type: ignore[method-assign]
    assert cli("get", kind.name, name, "-w", "-o", "name").text == f"{kind.name}/{name}\n"
