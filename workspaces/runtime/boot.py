"""Loads the runtime's modules compiled by a child process, so that the memory the compiler needs is never PID 1's.

Compiling a few thousand lines leaves about a megabyte of scattered heap behind, a tenth of what the runtime may use.
"""

from __future__ import annotations

import _frozen_importlib
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any


class Compiled:
    """Finder and loader in one, for the modules of one package."""

    def __init__(self, package: str, codes: dict[str, CodeType]) -> None:
        self._prefix, self._codes = package + ".", codes

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name.startswith(self._prefix) and name[len(self._prefix) :] in self._codes:
            return _frozen_importlib.ModuleSpec(name, self)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: object) -> None:
        return None  # the usual kind

    def exec_module(self, module: ModuleType) -> None:
        code = self._codes.pop(module.__name__[len(self._prefix) :])
        exec(code, module.__dict__)


def install(package: str, loader: Any, names: list[str]) -> None:
    """Makes `import` take the modules from a child's work; when that fails they are compiled here as usual."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            codes = {}
            for name in names:
                path = package + "/" + name + ".py"
                codes[name] = compile(loader.get_data(path), path, "exec", dont_inherit=True, optimize=2)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(marshal.dumps(codes))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    parts = []
    while True:
        part = os.read(reading, 65536)
        if not part:
            break
        parts.append(part)
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if status == 0:
        sys.meta_path.insert(0, Compiled(package, marshal.loads(b"".join(parts))))
