"""Fields that several bodies share: environments, paths, modes, a choice of shapes by kind."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator
from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from accounts.rest import StrictSerializer

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
ENV_NAMES = 256
ENV_VALUE_BYTES = 64 * 1024  # below the kernel's 128 KiB for one string
ENV_TOTAL_BYTES = 512 * 1024
FILE_PATH_BYTES = 4096
FILE_NAME_BYTES = 255
MODE = re.compile(r"0?[0-7]{3}")


def invalid(field: str, message: str) -> serializers.ValidationError:
    return serializers.ValidationError({field: [message]})


_ENV_VALUE: dict[str, Any] = {
    "oneOf": [
        {"type": "string"},
        {"type": "object", "properties": {"secret": {"type": "string", "writeOnly": True}}},
    ]
}
_ENV_SHAPE: dict[str, Any] = {"type": "object", "additionalProperties": _ENV_VALUE}


@extend_schema_field(_ENV_SHAPE)
class EnvField(serializers.Field[Any, Any, Any, Any]):
    """`{NAME: text | {secret: text}}`; a masked secret (`{set: true}`) stands for the stored one."""

    removable: ClassVar[bool] = False

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError("must be an object of names and values")
        if len(data) > ENV_NAMES:  # before each name is looked at
            raise serializers.ValidationError(f"must have at most {ENV_NAMES} names")
        problems = {str(name)[:80]: [why] for name, value in data.items() if (why := self._problem(str(name), value))}
        if problems:
            raise serializers.ValidationError(problems)
        if problem := size_problem({name: _text_of(value) for name, value in data.items()}):
            raise serializers.ValidationError(problem)
        return data

    def to_representation(self, value: Any) -> Any:
        return value

    def _problem(self, name: str, value: Any) -> str:
        return _env_problem(name, "" if value is None and self.removable else value)


@extend_schema_field(_ENV_SHAPE | {"additionalProperties": {**_ENV_VALUE, "nullable": True}})
class StoredEnvField(EnvField):
    """The environment of an object that can be changed: null removes a name, a secret too."""

    removable = True


class PlainEnvField(EnvField):
    """The environment of one exec: text only, since it is not stored."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        env = super().to_internal_value(data)
        if bad := [name for name, value in env.items() if not isinstance(value, str)]:
            raise serializers.ValidationError({bad[0]: ["must be text"]})
        return env


def size_problem(env: Mapping[str, str]) -> str:
    """Why an environment is too large, or ""."""
    if len(env) > ENV_NAMES:
        return f"must have at most {ENV_NAMES} names"
    if sum(len(name.encode()) + len(text.encode()) for name, text in env.items()) > ENV_TOTAL_BYTES:
        return f"must have at most {ENV_TOTAL_BYTES} bytes in all"
    return ""


def _text_of(value: Any) -> str:
    return str(value.get("secret", "")) if isinstance(value, dict) else value or ""


def _env_problem(name: str, value: Any) -> str:
    if not ENV_NAME.fullmatch(name):
        return "must be letters, digits and '_', not beginning with a digit, at most 128"
    if isinstance(value, dict):
        masked = value.get("set") is True and set(value) <= {"set", "last4"}
        if not masked and (set(value) != {"secret"} or not isinstance(value["secret"], str)):
            return "must be text or {secret: text}"
    elif not isinstance(value, str):
        return "must be text or {secret: text}"
    if len(_text_of(value).encode()) > ENV_VALUE_BYTES:
        return f"must have at most {ENV_VALUE_BYTES} bytes"
    return ""


def path_problem(path: str) -> str:
    """Why a path cannot name a file of a workspace, or ""; absolute ones are the runtime's to judge."""
    if len(path.encode("utf-8", "surrogateescape")) > FILE_PATH_BYTES:
        return f"must have at most {FILE_PATH_BYTES} bytes"
    parts = path.split("/")
    if ".." in parts:
        return "must not go up with .."
    if "\0" in path:
        return "must not contain NUL"
    if any(len(part.encode("utf-8", "surrogateescape")) > FILE_NAME_BYTES for part in parts):
        return f"must have names of at most {FILE_NAME_BYTES} bytes"
    if not [part for part in parts if part not in ("", ".")] or path.endswith("/") or parts[-1] == ".":
        return "must name a file"
    return ""


class PathField(serializers.CharField):
    """A path of a file in the workspace."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(trim_whitespace=False, max_length=FILE_PATH_BYTES, **kwargs)

    def to_internal_value(self, data: Any) -> str:
        path: str = super().to_internal_value(data)
        if problem := path_problem(path):
            raise serializers.ValidationError(problem)
        return path


class BytesField(serializers.IntegerField):
    """A number of bytes; a refusal says the bound as people write it too, since forms ask in MiB and GiB."""

    def __init__(self, *, min_value: int, max_value: int, **kwargs: Any) -> None:
        super().__init__(min_value=min_value, max_value=max_value, **kwargs)
        for validator in self.validators:
            if isinstance(validator, MinValueValidator):
                validator.message = f"must be at least {in_units(min_value)}"
            elif isinstance(validator, MaxValueValidator):
                validator.message = f"must be at most {in_units(max_value)}"


def in_units(count: int) -> str:
    """`64 MiB (67108864 bytes)`, in the largest unit of which it is a whole number."""
    number, units = count, ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1024 and number % 1024 == 0 and len(units) > 1:
        number, units = number // 1024, units[1:]
    return f"{count} bytes" if number == count else f"{number} {units[0]} ({count} bytes)"


@extend_schema_field({"oneOf": [{"type": "string", "pattern": "^0?[0-7]{3}$"}, {"type": "integer"}]})
class ModeField(serializers.Field[Any, Any, Any, Any]):
    """Permission bits: `"0644"`, or the number itself; never setuid, setgid or sticky."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, str) and MODE.fullmatch(data):
            return int(data, 8)
        if isinstance(data, int) and not isinstance(data, bool) and 0 <= data <= 0o777:
            return data
        raise serializers.ValidationError('must be permission bits such as "0644", without setuid, setgid and sticky')

    def to_representation(self, value: int) -> str:
        return f"{value:04o}"


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
class CommandField(serializers.Field[Any, Any, Any, Any]):
    """A shell line, or an argument list."""

    def to_internal_value(self, data: Any) -> list[str]:
        if isinstance(data, str) and data.strip() and len(data) <= 64 * 1024:
            return ["sh", "-c", data]
        if isinstance(data, list) and 0 < len(data) <= 1000 and all(isinstance(part, str) for part in data) and data[0]:
            return data
        raise serializers.ValidationError("must be a shell line or a list of arguments")

    def to_representation(self, value: list[str]) -> Any:
        return value[2] if len(value) == 3 and value[:2] == ["sh", "-c"] else value


def decode_base64(text: str, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(field, "must be base64") from None


class KindSerializer(StrictSerializer):
    """One shape of a choice by `kind`; subclasses add the fields of that kind."""

    KIND: ClassVar[str] = ""

    kind = serializers.CharField(help_text="Which shape this is.")

    def validate_kind(self, value: str) -> str:
        if value != self.KIND:
            raise serializers.ValidationError(f"must be {self.KIND}")
        return value


class ByKind(serializers.Field[Any, Any, Any, Any]):
    """A body whose shape depends on `kind`; `refused` maps kinds that exist elsewhere to the sentence that refuses them."""

    shapes: ClassVar[Mapping[str, type[KindSerializer]]] = {}
    refused: ClassVar[Mapping[str, str]] = {}
    default_kind: ClassVar[str | None] = None

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError("must be an object")
        kind = data.get("kind", self.default_kind)
        if isinstance(kind, str) and kind in self.refused:
            raise invalid("kind", self.refused[kind])
        shape = self.shapes.get(kind) if isinstance(kind, str) else None
        if shape is None:
            raise invalid("kind", f"must be one of {', '.join(self.shapes)}")
        serializer = shape(data={**data, "kind": kind}, context=self.context)
        serializer.is_valid(raise_exception=True)
        return dict(serializer.validated_data)

    def to_representation(self, value: Any) -> Any:
        return value


def by_kind(name: str, field: type[ByKind]) -> type[ByKind]:
    """Describes a ByKind field in the OpenAPI schema."""
    proxy = PolymorphicProxySerializer(
        component_name=name, serializers=dict(field.shapes), resource_type_field_name="kind"
    )
    described: type[ByKind] = extend_schema_field(proxy)(field)
    return described
