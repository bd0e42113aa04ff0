"""Rollyard's own processes that a test starts find no torch, as on a node without it.

transformers imports torch wherever it finds it, though a tokenizer needs none of it: two seconds of CPU a process.
"""

import sys

if any(word.startswith("rollyard.") for word in sys.orig_argv):
    sys.modules["torch"] = None  # type: ignore[assignment]
