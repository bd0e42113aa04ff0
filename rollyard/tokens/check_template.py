"""Program that checks whether a model's tokenizer and chat template can be used.

    python -m rollyard.tokens.check_template TOKENIZER_FOLDER MODEL_FOLDER [TOOL_PARSER]

If they cannot be used, the exit status is 1 and the last line of output is the reason. Else the exit status is 0, and the
last line is the proof of the tool calls, a `ToolProof` as JSON. The check is a process of its own, so that the process
that starts an engine does not keep the tokenizer in memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rollyard.core.errors import TemplateUnusable
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.tool_proof import prove_tool_calls


def main(tokenizer: str, model: str, tool_parser: str | None = None) -> int:
    try:
        template = ChatTemplate.load(Path(tokenizer), Path(model))
    except TemplateUnusable as error:
        print(" ".join(str(error).split()))  # noqa: T201 - the answer
        return 1
    print(prove_tool_calls(template, tool_parser).model_dump_json())  # noqa: T201 - the answer
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
