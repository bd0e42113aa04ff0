"""The archive from which a sandbox agent starts. `rollyard.sandbox_agent.archived_start` reads it."""

from __future__ import annotations
import __future__

import ast
import importlib.util
import marshal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

START = "start.pyc"
_LIST = """
import sys
before = set(sys.modules)
import rollyard.sandbox_agent.main, rollyard.sandbox_agent.server
for name in sys.modules.keys() - before:
    origin = sys.modules[name].__spec__.origin
    if origin not in ("built-in", "frozen"):
        print(name, origin)
"""


def write_archive(folder: Path, place: str, python: Sequence[str], start: Path) -> None:
    """Write the archive into `folder`, a complete bundle that a sandbox has at `place`. `python`: command of the bundle's
    Python, outside of a sandbox. `start`: source of the module that reads the archive."""
    listed = subprocess.run([*python, "-I", "-S", "-c", _LIST], env={}, stdout=subprocess.PIPE, text=True, check=True)
    modules: dict[str, tuple[str, CodeType | None]] = {}
    for name, origin in (line.split(" ", 1) for line in listed.stdout.splitlines()):
        path = str(Path(origin).relative_to(folder))
        modules[name] = (path, _compiled(Path(origin), f"{place}/{path}") if path.endswith(".py") else None)
    (folder / "modules").write_bytes(marshal.dumps(modules))
    # The form of compiled files: PEP 552. Python reads the 12 bytes only from a module that it imports.
    code = marshal.dumps(_compiled(start, f"{place}/{START}"))
    (folder / START).write_bytes(importlib.util.MAGIC_NUMBER + bytes(12) + code)


def _compiled(source: Path, name: str) -> CodeType:
    """Return a module's code without docstrings, and without an import of `__future__`, which would cost a file more."""
    tree = ast.parse(source.read_bytes())
    tree.body = [node for node in tree.body if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")]
    flags = __future__.annotations.compiler_flag
    code: CodeType = compile(tree, name, "exec", flags=flags, dont_inherit=True, optimize=2)
    return code
