"""Commands that are shown to be copied: whatever a file is called, a shell takes its name as one word and runs nothing else."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from cli.invoked import line, word
from tests.cli.conftest import Cli
from tests.cli.fake import WS, Answer, Primer, problem

HOSTILE = (
    "$(touch pwned).txt", "`id`", "a;id;b.txt", "-x", "--help", "a b", "it's", 'say "no"', "a\nb", "\u202egnp.exe", "=ls", "~root", "*",
    "a&b|c>d", "!x", "#x", "tab\tx", "back\\slash\nx'", "\udcff\udcfe.bin", "caf\u00e9 \u00a0.txt", "esc\x1b[2Jx", "7\x017", "{a,b}",
)  # fmt: skip


def bash(script: str, folder: Path) -> bytes:
    return subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=True).stdout


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_bash_reads_a_hostile_name_as_the_one_word_it_is(tmp_path: Path, name: str) -> None:
    assert bash(f"printf '%s|' {word(name)} end", tmp_path) == name.encode("utf-8", "surrogateescape") + b"|end|"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_what_is_shown_has_nothing_in_it_that_cannot_be_seen(name: str) -> None:
    assert word(name).isprintable()


def test_a_plain_name_is_shown_as_it_is() -> None:
    assert line("primectl workspace files get", WS, "dir/out.txt", options="--content") == (
        f"primectl workspace files get {WS} dir/out.txt --content"
    )


@pytest.mark.parametrize("name", [name for name in HOSTILE if "\n" not in name and "\x1b" not in name], ids=ascii)
def test_the_shown_line_prints_the_very_file(cli: Cli, primer: Primer, name: str) -> None:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    primer.files = {name: b"42"}
    shown = line("primectl workspace files get", WS, name, options="--content")
    argv = bash(f"printf '%s\\0' {shown}", Path.cwd()).decode("utf-8", "surrogateescape").split("\0")[1:-1]
    result = cli(*argv)
    assert (result.code, result.out) == (0, b"42"), result.err


@pytest.mark.parametrize("name", ["$(touch pwned)", "-d", "a;id"])
def test_hints_about_a_directory_quote_its_name(cli: Cli, primer: Primer, name: str) -> None:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    tar = {"Content-Type": "application/x-tar"}
    primer.on("GET", f"/v1/workspaces/{WS}/files/download", Answer(200, b"", tar))
    hint = cli("workspace", "files", "get", "--content", "--", WS, name).err
    assert line("primectl workspace files get", WS, name, options="-O DIR") in hint
    primer.on("DELETE", f"/v1/workspaces/{WS}/files", problem(409, "not_empty"))
    hint = cli("workspace", "files", "rm", "--", WS, name).err
    assert line("primectl workspace files rm -R", WS, name) in hint


def test_a_hint_about_a_file_that_a_directory_brought_quotes_its_name(cli: Cli, primer: Primer, tmp_path: Path) -> None:
    folder = tmp_path / "cloned"
    folder.mkdir()
    (folder / "$(touch pwned).yaml").write_text("kind: agent\nspec: {id: a, model: {provider_id: p}}\n")
    primer.on("POST", "/v1/agents", problem(422, "invalid"))
    hint = cli("create", "-f", str(folder)).err
    assert "apply -f '" in hint
    assert shlex.split(hint[hint.index("apply -f ") :])[2] == f"{folder}/$(touch pwned).yaml"
