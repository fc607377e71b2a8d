"""What every operation of the OpenAPI document says, made in one place: conditions, keys, filters, failures, examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework import serializers
from rest_framework.permissions import SAFE_METHODS

from primer_site.examples import BODIES

HEADER: Final = "header"
KEY = OpenApiParameter(
    "Idempotency-Key", OpenApiTypes.STR, HEADER, pattern=r"^[\x21-\x7e]{1,128}$",
    description="Makes a repeat safe for 24 hours: the same key and body get the same answer, another body is refused. "
    "Answers that show a secret once are not kept: their repeat is a 409.",
)  # fmt: skip
DRY = OpenApiParameter(
    "dry_run", bool, description="Run every check and store nothing; ids that the server would make stay empty."
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    HEADER,
    description="The ETag that was read: a change by somebody else since is a 412.",
)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    OpenApiTypes.STR,
    HEADER,
    description="The ETag that is known: an object that is still so is a 304.",
)
ETAG = {"$ref": "#/components/headers/ETag"}
PROBLEM = "application/problem+json"
REQUEST_ID = {"$ref": "#/components/headers/RequestId"}
ETAG_HEADER = {"schema": {"type": "string"}, "description": 'Of the object as it is now: `"<spec>.<state>"`.'}
REQUEST_ID_HEADER = {
    "schema": {"type": "string"},
    "description": "Of this request; the log and the audit have the same.",
}

FAILURES = {
    400: "The request cannot be understood: the body is no JSON, or the host is not served.",
    401: "There is no valid token.",
    403: "The role or the token's scope does not allow this.",
    404: "There is no such object, or it is not yours to see.",
    405: "The route does not take that method; `Allow` has those that it takes.",
    409: "Its state does not allow this, something uses it, or the key stands for another request.",
    412: "It was changed by somebody else since it was read.",
    413: "The body is too large.",
    415: "The body has another content type.",
    416: "The file has no bytes in that range.",
    422: "Something in it is not valid; `errors` names the fields.",
    424: "The model cannot be used with the settings it has.",
    429: "Too many requests, or too many objects of yours.",
    502: "The engine or the model answered what cannot be used.",
    503: "The engine or the database did not answer. Try again.",
    504: "It did not finish in time.",
    507: "The disk is full.",
}
# What `code` is with each status; `internal` (500) would be an error of ours. The first is the usual one.
CODES = {
    400: ("invalid",),
    401: ("unauthenticated",),
    403: ("forbidden", "permission"),
    404: ("not_found", "engine_missing"),
    405: ("method_not_allowed",),
    409: (
        "conflict", "in_use", "workspace_not_running", "workspace_lost", "not_regular", "is_dir", "not_dir", "symlink", "exists",
        "not_empty", "changed", "image_not_found", "image_unsuitable", "start_failed", "start_timeout", "spec_mismatch",
        "init_failed", "not_enforced", "data_lost", "provider_unusable", "engine_busy",
    ),
    412: ("precondition_failed",),
    413: ("too_large",),
    415: ("invalid",),
    416: ("invalid",),
    422: ("invalid", "not_text", "name_too_long", "cannot_start"),
    424: ("llm_config", "context_too_long"),
    429: ("rate_limited",),
    502: ("llm_unavailable", "llm_error", "engine_error", "protocol_error", "sandbox_refused"),
    503: ("engine_unavailable", "unavailable", "channel_closed", "sandbox_busy"),
    504: ("timeout",),
    507: ("disk_full",),
}  # fmt: skip
SANDBOX = re.compile(r"/(exec|files|check|verify)(/|$)")
MODEL = re.compile(r"/(test|models)$")


class FieldErrorSerializer(serializers.Serializer[Any]):
    field = serializers.CharField(help_text="A dotted path into the body, or the name of a parameter or header.")
    message = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """Every failure: RFC 9457 with a stable `code`, the wrong fields, and the id that the log has."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField(help_text="Stable; match on it.")
    detail = serializers.CharField(help_text="A sentence for people.")
    hint = serializers.CharField(required=False, help_text="What to do next.")
    errors = FieldErrorSerializer(many=True)  # type: ignore[assignment]
    request_id = serializers.CharField()


class Operation(AutoSchema):
    """The description of one route and method, of what its view declares."""

    @property
    def _action(self) -> str:
        return str(getattr(self.view, "action", None) or self.method.lower())

    @property
    def _has_etag(self) -> bool:
        """Whether the route is one stored object, which the conventions give an ETag."""
        return getattr(self.view, "etagged", False) and self._action in (
            "retrieve", "update", "partial_update", "destroy",
        )  # fmt: skip

    @property
    def _writes(self) -> bool:
        return self.method not in SAFE_METHODS

    def get_override_parameters(self) -> list[Any]:
        given = super().get_override_parameters()
        if self.method == "POST":
            given = [KEY, *given]
        if self._writes and getattr(self.view, "dry", False):
            given = [DRY, *given]
        if self._has_etag:
            given = [IF_MATCH if self._writes else IF_NONE_MATCH, *given]
        return given

    def get_tags(self) -> list[str]:
        words = self.path.strip("/").split("/")
        return [words[3]] if len(words) > 3 and words[3] in ("exec", "files") else [words[1]]

    def get_examples(self) -> list[Any]:
        made = [
            OpenApiExample(name, value=body, request_only=True)
            for name, body in BODIES.get(f"{self.method} {self.path}", {}).items()
        ]
        return [*super().get_examples(), *made]

    def _postprocess_serializer_schema(self, schema: Any, serializer: Any, direction: Any) -> Any:
        """Says where unknown fields are refused; a shape that takes back what reads show is left open."""
        schema = super()._postprocess_serializer_schema(schema, serializer, direction)  # type: ignore[no-untyped-call]
        if direction == "request" and getattr(serializer, "read_back", None) == frozenset():
            schema["additionalProperties"] = False
        return schema

    def _failures(self) -> Iterator[int]:
        """The statuses beside success that this route can answer."""
        yield from (400, 401, 422, 503)
        admin_only = getattr(self.view, "admin_only", False)
        if self._writes or admin_only is True:
            yield 403
        if "{" in self.path:
            yield 404
        if self._writes:
            yield from (409, 507)
        if self.method in ("POST", "PUT", "PATCH"):
            yield from (413, 415)
        if (self._has_etag and self._writes) or self.path.endswith("/files"):
            yield 412
        if "/files" in self.path:  # what the sandbox's own user may not read; preconditions of a GET
            yield from (403, 412)
        if SANDBOX.search(self.path) or ("workspace_templates" in self.path and self._writes):
            yield from (409, 502, 504, 507)
        if MODEL.search(self.path):
            yield from (409, 424, 429, 502, 504)
        if self.view.throttle_classes or self._action in getattr(self.view, "counted", ()):
            yield 429
        if self.path.endswith("/download"):
            yield 416

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        for code, body in bodies.items():
            body.setdefault("headers", {})["X-Request-ID"] = REQUEST_ID
            if self._tells_etag(code):
                body["headers"]["ETag"] = ETAG
        if self._has_etag and not self._writes:
            bodies["304"] = {"description": "It is as you know it.", "headers": {"ETag": ETAG}}
        self.resolve_serializer(ProblemSerializer, direction)
        for status in sorted(set(self._failures())):
            bodies.setdefault(str(status), {"$ref": f"#/components/responses/Failure{status}"})
        return bodies

    def _tells_etag(self, code: str) -> bool:
        made = self._action == "create" and code == "201"
        return getattr(self.view, "etagged", False) and (made or (self._has_etag and code == "200"))


def add_shared(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Adds to the document what operations refer to, and to each shape of a choice the `kind` that it is."""
    result["components"]["responses"] = {
        f"Failure{status}": {
            "description": text, "headers": {"X-Request-ID": REQUEST_ID}, "content": {PROBLEM: {"schema": _problem(status)}},
        }
        for status, text in FAILURES.items()
    }  # fmt: skip
    result["components"]["headers"] = {"ETag": ETAG_HEADER, "RequestId": REQUEST_ID_HEADER}
    schemas: dict[str, Any] = result["components"]["schemas"]
    for choice in [found["discriminator"] for found in _with(schemas, "discriminator")]:
        for kind, ref in choice["mapping"].items():
            fields = schemas[ref.rsplit("/", 1)[1]]["properties"]
            said = fields.get(choice["propertyName"], {}).get("description")
            fields[choice["propertyName"]] = {
                "type": "string",
                "enum": [kind],
                **({"description": said} if said else {}),
            }
    return result


def _problem(status: int) -> dict[str, Any]:
    """The shape of a failure with that status."""
    code = {"type": "object", "properties": {"code": {"type": "string", "enum": list(CODES[status])}}}
    return {"allOf": [{"$ref": "#/components/schemas/Problem"}, code]}


def _with(value: Any, key: str) -> Iterator[dict[str, Any]]:
    """Every object of a document that has the key."""
    if isinstance(value, dict):
        if key in value:
            yield value
        for inner in value.values():
            yield from _with(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _with(inner, key)
