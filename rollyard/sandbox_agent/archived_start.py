"""Starts the sandbox agent from an archive: one file with the code of all modules that the start imports. To find and read
them one by one takes longer than to run them.

`rollyard.sandbox.sandbox_agent_archive` writes the archive, and compiles this file, which Python runs as a script. A module
that is not in the archive is found where it is installed.
"""

from __future__ import annotations

import _imp
import marshal
import sys
from _frozen_importlib import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType


class Archive:
    """The finder and the loader of the archive's modules (importlib.abc)."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with open(f"{folder}/modules", "rb", 0) as file:
            self._modules: dict[str, tuple[str, CodeType | None]] = marshal.loads(file.read())
        """Name -> path in the folder, and code; None for a module made of C."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        path = f"{self._folder}/{self._modules[name][0]}"
        spec = ModuleSpec(name, self, origin=path)  # type: ignore[arg-type]
        if path.endswith("/__init__.py"):
            spec.submodule_search_locations = [path.rpartition("/")[0]]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self._modules[spec.name][1] else _imp.create_dynamic(spec)

    def exec_module(self, module: ModuleType) -> None:
        code = self._modules[module.__name__][1]
        if code is None:
            _imp.exec_dynamic(module)
        else:
            exec(code, module.__dict__)


if __name__ == "__main__":
    sys.meta_path.insert(0, Archive(__file__.rpartition("/")[0]))
    from rollyard.sandbox_agent.main import main

    main()
