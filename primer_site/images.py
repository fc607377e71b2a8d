"""The sandbox image from the operator's side: build it, or only when it is missing or old."""

from __future__ import annotations

import click

from primer_site import engine, report


def build(tag: str, base: str, packages: str) -> None:
    """`primer image build`."""
    from workspaces import image

    names = [name.strip() for name in packages.split(",") if name.strip()]
    for text in image.build(tag=tag, base=base, packages=names, force=True, engine_url=engine.url()):
        click.echo(text)


def ensure() -> None:
    """Builds the image when it is missing or carries another runtime than this server speaks; one line either way."""
    from workspaces import image
    from workspaces.runtime import build as runtime

    found = image.runtime_digest(engine_url=engine.url())
    if found == runtime.digest():
        report.ok("image", image.TAG)
        return
    report.warn("image", f"{image.TAG} {'missing' if found is None else 'has another runtime'}, building")
    last = ""
    for last in image.build(force=found is not None, engine_url=engine.url()):
        click.echo(f"      {'':<9} {last}")
    report.ok("image", last)
