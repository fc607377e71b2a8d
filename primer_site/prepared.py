"""Queries of hot paths: compiled by Django once in each thread, and then only run.

Building and compiling a query costs several times what the database needs to answer it. What every request asks is asked in
this way, and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from django.db import connections, models

M = TypeVar("M", bound=models.Model)


class Prepared(Generic[M]):
    """One SELECT of a model, `select_related` and `only` included, whose parameters are named.

    `build` is called once in each thread, with stand-ins of the types in `parameters` (`str` or `int`), and hands them to
    its filters as they are. `all(name=value, …)` then gives the rows that `build(name=value, …)` would.
    """

    def __init__(self, build: Callable[..., models.QuerySet[M]], **parameters: type) -> None:
        self._build = build
        self._stand_ins: dict[Any, str] = {
            f"\x01{name}\x01" if kind is str else -(2**52) - number: name
            for number, (name, kind) in enumerate(parameters.items())
        }
        self._local = threading.local()

    def all(self, **values: Any) -> list[M]:
        """The rows for these values."""
        if getattr(self._local, "connection", None) is not connections["default"]:
            self._prepare()
        self._local.values = values
        rows: models.QuerySet[M] = self._local.rows
        return list(rows.iterator())  # which neither copies the query nor remembers what it found

    def _prepare(self) -> None:
        rows = self._build(**{name: stand_in for stand_in, name in self._stand_ins.items()})
        compiler: Any = rows.query.get_compiler("default")
        sql, params = compiler.as_sql()
        converters = compiler.get_converters([column for column, _, _ in compiler.select])

        def run(**_chunks: Any) -> list[Any]:
            values = self._local.values
            with compiler.connection.cursor() as cursor:
                cursor.execute(sql, [values[self._stand_ins[one]] if one in self._stand_ins else one for one in params])
                return [cursor.fetchall()]

        # The query set goes on as ever, with a compiler that has done its work.
        compiler.execute_sql, compiler.get_converters = run, lambda _columns: converters
        rows.query.get_compiler = lambda **_using: compiler  # type: ignore[method-assign]
        self._local.rows, self._local.connection = rows, compiler.connection
