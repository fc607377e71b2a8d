"""Generated requests over the committed document against a real server: no 5xx, no answer that it does not describe, and none to
a request without a valid token."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.live import LiveWorld
from tests.api.table import operations

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "openapi.yaml"
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "response_headers_conformance",
)  # fmt: skip
ENDS_ITSELF = "/v1/auth/logout"  # the token that all requests share
# Checks -> how many requests are made for each operation; those about sign-in send each one twice more.
PASSES = {",".join(CHECKS): 20, "ignored_auth": 2}
WITHIN_S = 600  # an idle machine takes a tenth of it


def settings_file(world: LiveWorld, path: Path) -> Path:
    """Leads what reads and changes to objects that exist; deletes go to ids that are made up."""
    parts = []
    for name in operations():
        method, route = name.split(" ", 1)
        if "{" not in route or method == "DELETE":
            continue
        ids = f'"path.id" = "{world.ids[route.split("/")[2]]}", "path.exec_id" = "{world.ids["exec"]}"'
        parts.append(
            f'[[operations]]\ninclude-path = "{route}"\ninclude-method = "{method}"\nparameters = {{ {ids} }}\n'
        )
    path.write_text("\n".join(parts))
    return path


@pytest.mark.parametrize("checks", PASSES)
def test_no_generated_request_meets_a_5xx_or_an_undescribed_answer(
    checks: str, live_world: LiveWorld, tmp_path: Path
) -> None:
    command = [
        sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()",
        "--config-file", str(settings_file(live_world, tmp_path / "schemathesis.toml")),
        "run", str(DOCUMENT), "--url", live_world.server.url, "--checks", checks, "--phases", "fuzzing",
        "--max-examples", str(PASSES[checks]), "--exclude-path", ENDS_ITSELF, "--header", f"Authorization: Bearer {live_world.server.token}",
        "--no-shrink", "--continue-on-failure", "--warnings", "off", "--request-timeout", "60", "--seed", "7",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, timeout=WITHIN_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert f"{len(operations()) - 1} passed" in done.stdout, done.stdout[-3000:]
    assert "status=500" not in live_world.server.log()
