"""Program that checks whether a model's tokenizer and chat template can be used.

    python -m rollyard.tokens.check_template TOKENIZER_FOLDER [MODEL_FOLDER]

If they cannot be used, the exit status is 1 and the last line of output is the reason; else the exit status is 0. The
check is a process of its own, so that the process that starts an engine does not keep the tokenizer in memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rollyard.core.errors import TemplateUnusable
from rollyard.tokens.chat_template import ChatTemplate


def main(folders: list[str]) -> int:
    try:
        ChatTemplate.load(*map(Path, folders))
    except TemplateUnusable as error:
        print(" ".join(str(error).split()))  # noqa: T201 - the answer
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
