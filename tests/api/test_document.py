"""The OpenAPI document: whole, with examples that hold, and a page that shows it."""

from __future__ import annotations

import copy
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from primer_site.errors import PrimerError
from primer_site.examples import BODIES
from primer_site.operation import CODES, PROBLEM
from tests.api.conftest import World
from tests.api.table import SCHEMA, operations, path_of, takes, writes
from tests.factories import Api
from tests.live import LiveServer

APPS = ("accounts", "agents", "workspaces", "sessions_app", "primer_site")
# Of commands on the server's machine, between parts of the server, and of an error of ours: no answer to a request has them.
NO_ANSWERS = {
    (409, "lost_lease"), (409, "wrong_instance"), (409, "server_runs"), (409, "one_process"), (409, "not_prepared"),
    (409, "address_in_use"), (500, "database_broken"), (500, "secret_unreadable"), (500, "internal"),
    (502, "image_build_failed"), (503, "sandbox_failed"),
}  # fmt: skip
EXAMPLES = [(name, title) for name, bodies in BODIES.items() for title in bodies]


def plain(schema: Any) -> Any:
    """OpenAPI 3.0 as JSON Schema: `nullable` becomes a type, references lead into this document."""
    if isinstance(schema, list):
        return [plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: plain(value) for key, value in schema.items() if key != "nullable"}
    return {"anyOf": [found, {"type": "null"}]} if schema.get("nullable") else found


def validate(body: Any, schema: dict[str, Any]) -> None:
    document = {**plain(schema), "components": plain(SCHEMA["components"])}
    jsonschema.Draft202012Validator(document, format_checker=jsonschema.FormatChecker()).validate(body)


def request_schema(name: str) -> dict[str, Any]:
    content: dict[str, Any] = operations()[name]["requestBody"]["content"]
    return dict(content["application/json"]["schema"])


def test_every_body_of_a_post_or_put_has_an_example() -> None:
    bodies = {
        name for name, operation in operations().items()
        if name.startswith(("POST ", "PUT ")) and "requestBody" in operation
    }  # fmt: skip
    assert bodies <= set(BODIES)
    assert set(BODIES) <= set(operations())


@pytest.mark.parametrize(("name", "title"), EXAMPLES)
def test_an_example_is_valid_by_its_schema_and_stands_in_the_document(name: str, title: str) -> None:
    body = BODIES[name][title]
    validate(body, request_schema(name))
    shown = operations()[name]["requestBody"]["content"]["application/json"]["examples"]
    assert body in [one["value"] for one in shown.values()]


def test_a_wrong_body_is_not_valid_by_its_schema() -> None:
    body = {**copy.deepcopy(BODIES["POST /v1/agents"]["runs code"]), "max_output_tokens": "many"}
    with pytest.raises(jsonschema.ValidationError):
        validate(body, request_schema("POST /v1/agents"))


@pytest.mark.parametrize(("name", "title"), [(n, t) for n, t in EXAMPLES if "/exec" not in n and "/files" not in n])
def test_the_server_accepts_an_example(name: str, title: str, world: World, bob: Api) -> None:
    """What needs an engine is tried dry; ids of the examples lead to objects of the world."""
    body = adapted(copy.deepcopy(BODIES[name][title]), name, world)
    client = world.client("alice") if "/auth/" in name or "/sessions" in name else bob
    query: dict[str, Any] = {"dry_run": "true"} if takes(name, "dry_run") else {}
    answer = client.call(name.split(" ", 1)[0], path_of(name, world.ids), body, **query)
    assert 200 <= answer.status_code < 300, answer.content


def adapted(body: dict[str, Any], name: str, world: World) -> dict[str, Any]:
    ids = {"provider_id": "here", "template_id": "plain", "workspace_id": world.workspace.slug}
    if "workspace_templates" in name:
        body["backend"] = {"kind": "local"}
    if "workspace_providers" in name:
        from tests.api.table import LOCAL

        body |= copy.deepcopy(LOCAL)
    if name.startswith("PUT "):
        body.pop("id", None)
    if body.get("id") in world.ids.values() or body.get("id") in ("code-runner", "scripted"):
        body["id"] = "fresh"
    return body | {key: value for key, value in ids.items() if key in body}


def test_every_answer_of_every_operation_is_described() -> None:
    for name, operation in operations().items():
        codes = set(operation["responses"])
        assert any(code.startswith("2") for code in codes), name
        assert {"400", "422", "401"} <= codes, name
        if writes(name):
            assert {"403", "409"} <= codes, name
        if "{" in name:
            assert "404" in codes, name
        if takes(name, "If-Match"):
            assert "412" in codes, name
        if takes(name, "If-None-Match") and not writes(name):
            assert "304" in codes, name
        assert operation.get("description"), name
        assert all(parameter.get("description") or parameter["in"] == "path" for parameter in operation["parameters"]
                   ) if "parameters" in operation else True, name  # fmt: skip


def test_every_post_takes_an_idempotency_key() -> None:
    assert [name for name in operations() if name.startswith("POST ") and not takes(name, "Idempotency-Key")] == []


def test_every_failure_has_the_one_shape() -> None:
    for failure in SCHEMA["components"]["responses"].values():
        (kind, media), *others = failure["content"].items()
        assert (kind, others) == ("application/problem+json", [])
        shape, code = media["schema"]["allOf"]
        assert shape == {"$ref": "#/components/schemas/Problem"}
        assert code["properties"]["code"]["enum"]


def test_every_code_of_an_error_is_documented_with_its_status() -> None:
    """Programs match on codes: one that no page names could only be found by meeting it."""
    for name in APPS:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not re.search(r"\.(migrations|runtime)\b", module.name):
                importlib.import_module(module.name)
    raised = {(kind.status, kind.code) for kind in errors_below(PrimerError)}
    told = {(status, code) for status, codes in CODES.items() for code in codes}
    assert raised - told - NO_ANSWERS == set()
    assert told - raised == set()


def errors_below(kind: type[PrimerError]) -> Iterator[type[PrimerError]]:
    for one in kind.__subclasses__():
        if not one.__module__.startswith("tests."):
            yield one
        yield from errors_below(one)


def test_a_real_failure_is_valid_by_that_shape(world: World, bob: Api) -> None:
    for answer in (
        bob.get("agents/nope"),
        bob.post("agents", {}),
        bob.get("agents", limit="x"),
        bob.post("agents", []),
    ):
        validate(
            answer.json(),
            SCHEMA["components"]["responses"][f"Failure{answer.status_code}"]["content"][PROBLEM]["schema"],
        )


def test_the_served_schema_is_the_committed_one(world: World, alice: Api) -> None:
    served = alice.get("schema/", {"Accept": "application/json"})
    assert served.status_code == 200
    assert served.json() == SCHEMA
    assert alice.get("schema/").headers["Content-Type"].startswith("application/vnd.oai.openapi")
    assert world.client("nobody").get("schema/").status_code == 401


@pytest.mark.e2e
def test_the_page_shows_it_without_inline_script_and_with_nothing_from_elsewhere(server: LiveServer) -> None:
    assert server.request("GET", "/v1/docs/", token="").status_code == 401
    page = server.request("GET", "/v1/docs/")
    assert page.status_code == 200
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", page.text) == []
    sources = re.findall(r'<(?:script|link)[^>]*\b(?:src|href)="([^"]+)"', page.text)
    assert len(sources) >= 3
    assert all(source.startswith(("/", "?")) for source in sources), sources
    texts = [server.request("GET", source if source.startswith("/") else f"/v1/docs/{source}") for source in sources]
    assert [answer.status_code for answer in texts] == [200] * len(sources)
    assert any("/v1/schema/" in answer.text for answer in texts)
    assert any("SwaggerUIBundle" in answer.text for answer in texts)
