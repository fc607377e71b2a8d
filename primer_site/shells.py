"""Command lines that pages show: what is copied from one into a shell runs nothing but the command."""

from __future__ import annotations

from cli.invoked import line, word

__all__ = ["line", "word"]
