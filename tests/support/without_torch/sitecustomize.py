"""Hides torch from Rollyard's processes that a test starts, as on a node without it, and shortens the import of transformers
in each process of a test run.

transformers imports torch when it finds it, though a tokenizer does not need it: that costs two seconds of CPU a
process. And each import of transformers reads more than a thousand of its own files, to list what they define. That
costs a second of CPU a process, so the list is kept in a file beside this one.
"""

import importlib.machinery
import os
import sys
import zlib


class _ShortImport:
    """Finds the module of transformers that makes the list, and puts a function that reads the file in its place."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "transformers.utils.import_utils":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            execute(module)
            if hasattr(module, "define_import_structure"):  # an older release in an environment of its own lacks it
                module.define_import_structure = _kept(
                    module.define_import_structure, os.stat(module.__file__).st_mtime_ns
                )

        spec.loader.exec_module = exec_module
        return spec


def _kept(list_definitions, changed):  # type: ignore[no-untyped-def]
    import pickle

    def kept(module_path, prefix=None):  # type: ignore[no-untyped-def]
        words = (module_path, prefix, changed)
        folder = os.path.join(os.path.dirname(__file__), "__pycache__")
        file = os.path.join(folder, f"transformers-{zlib.crc32(repr(words).encode()):08x}")
        try:
            with open(file, "rb") as stored:
                named, found = pickle.load(stored)
            if named == words:
                return found
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            pass
        found = list_definitions(module_path, prefix)
        try:
            growing = f"{file}.{os.getpid()}"
            with open(growing, "wb") as stored:
                pickle.dump((words, found), stored)
            os.replace(growing, file)
        except OSError:
            pass
        return found

    return kept


# the variable: of `tests/support/scripted_engine.py`
if any(word.startswith("rollyard.") for word in sys.orig_argv) or "ROLLYARD_TEST_TURNS" in os.environ:
    sys.modules["torch"] = None  # type: ignore[assignment]
sys.meta_path.insert(0, _ShortImport())  # type: ignore[arg-type]
