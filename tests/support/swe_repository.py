"""A small root file system with git and a repository, and the task of kind `swe` that goes with it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from rollyard.host.sandbox_account import sandbox_account
from rollyard.kinds.task import Task
from tests.support.small_roots import add_git, python_root

BASE = {
    "calc/__init__.py": "", "calc/ops.py": "def add(a, b):\n    return a - b\n", "calc/keep.py": "KEPT = 1\n",
    "calc/old/__init__.py": "", "calc/old/code.py": "OLD = 1\n", "docs/guide.txt": "guide\n",
    "tool.sh": "#!/bin/sh\necho tool\n", "tests/__init__.py": "",
    "tests/test_keep.py": "import unittest\nfrom calc import keep\n\n\nclass Keep(unittest.TestCase):\n"
    "    def test_keep(self):\n        self.assertEqual(keep.KEPT, 1)\n",
    ".gitignore": "*.pyc\nlocal_*.py\n/build/\n", "setup.cfg": "[metadata]\nname = calc\n\n[tool:pytest]\naddopts = -q\n",
}  # fmt: skip
RIGHT = "def add(a, b):\n    return a + b\n"
HIDDEN_TEST = (
    "import unittest\nfrom calc.ops import add\n\n\nclass Add(unittest.TestCase):\n"
    "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"
)
REFERENCE = """diff --git a/calc/ops.py b/calc/ops.py
--- a/calc/ops.py
+++ b/calc/ops.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
SECRET = "the future has a commit"
ADD, KEEP = "test_add (tests.test_add.Add.test_add)", "test_keep (tests.test_keep.Keep.test_keep)"


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "safe.directory=*"]
    return subprocess.run(["git", "-C", folder, *names, *words], check=True, capture_output=True, text=True).stdout


def make_repository(folder: Path) -> None:
    """Make the repository, with a past and a future."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "first.txt").write_text("first\n")
    _commit(folder, "first")
    (folder / "first.txt").unlink()
    for name, text in BASE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "data.bin").write_bytes(bytes(range(256)))
    (folder / "link").symlink_to("docs/guide.txt")
    _commit(folder, "base")
    (folder / "calc" / "ops.py").write_text(RIGHT)
    (folder / "secret.txt").write_text(SECRET)
    _commit(folder, SECRET)
    git(folder, "tag", "v2")
    git(folder, "branch", "future")
    git(folder, "reset", "-q", "--hard", "HEAD~1")


def _commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


def repository_root(folder: Path) -> Path:
    """Make a root file system with Python, git and the repository in /testbed."""
    root = python_root(folder)
    add_git(root)
    make_repository(root / "testbed")
    account = sandbox_account()
    subprocess.run(["chown", "-hR", f"{account.uid}:{account.gid}", root], check=True)
    return root


def swe_fields(**more: Any) -> dict[str, Any]:
    fields = {
        "statement": "add(2, 3) is -1.", "script": "python3 -m unittest -v tests.test_add tests.test_keep",
        "log_parser": "unittest", "fail_to_pass": [ADD], "pass_to_pass": [KEEP],
        "test_files": {"tests/test_add.py": HIDDEN_TEST}, "reference_patch": REFERENCE, "seconds": 60,
    }  # fmt: skip
    return fields | more


def swe_task(**more: Any) -> Task:
    return Task.model_validate({"kind": "swe", **swe_fields(**more)})
