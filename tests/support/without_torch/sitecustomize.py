"""Hides torch from Rollyard's processes that a test starts, as on a node without it.

transformers imports torch when it finds it, though a tokenizer does not need it: that costs two seconds of CPU a
process.
"""

import sys

if any(word.startswith("rollyard.") for word in sys.orig_argv):
    sys.modules["torch"] = None  # type: ignore[assignment]
