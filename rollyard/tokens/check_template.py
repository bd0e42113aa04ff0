"""Checks whether a model's tokenizer and chat template can be used, and prints the reason if not.

    python -m rollyard.tokens.check_template TOKENIZER_FOLDER [MODEL_FOLDER]

Exit status 1 with the reason on the last line, else 0. It runs as a separate process, because an inference server needs
neither the tokenizer nor the template after the check.
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
