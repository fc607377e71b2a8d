"""The OpenAPI document: committed as docs/openapi.yaml, compared by a test, written by `python -m primer_site.openapi`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "docs" / "openapi.yaml"


def schema_text() -> str:
    """The whole document as YAML; raises when a route cannot be described."""
    from drf_spectacular.drainage import GENERATOR_STATS
    from drf_spectacular.generators import SchemaGenerator
    from drf_spectacular.renderers import OpenApiYamlRenderer
    from drf_spectacular.validation import validate_schema

    GENERATOR_STATS.reset()
    with GENERATOR_STATS.silence():
        document = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    problems = [*GENERATOR_STATS._error_cache, *GENERATOR_STATS._warn_cache]
    if problems:
        raise ValueError("routes without a full description:\n" + "\n".join(sorted(problems)))
    validate_schema(document)  # type: ignore[no-untyped-call]
    return str(OpenApiYamlRenderer().render(document, renderer_context={}).decode())  # type: ignore[no-untyped-call]


def main() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "primer_site.settings")
    with tempfile.TemporaryDirectory() as home:
        os.environ["PRIMER_HOME"] = home
        django.setup()
        TARGET.write_text(schema_text())


if __name__ == "__main__":
    main()
