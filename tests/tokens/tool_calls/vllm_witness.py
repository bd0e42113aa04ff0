"""Program that reads calls with vLLM's parsers. It runs in vLLM's own environment.

stdin: {"tokens": [special token, …], "turns": [[parser, text, tools], …]}. stdout: for each turn a list of
[name, arguments as JSON], or a text with the error.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # type: ignore[attr-defined,unused-ignore]
from transformers import PreTrainedTokenizerFast


def tokenizer(special: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes with these special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>")
    fast.add_tokens(special, special_tokens=True)
    return fast


def main() -> None:
    logging.disable(logging.CRITICAL)
    from vllm.entrypoints.openai.chat_completion.protocol import (  # type: ignore[import-not-found,unused-ignore]
        ChatCompletionRequest,
    )
    from vllm.tool_parsers import ToolParserManager  # type: ignore[import-not-found,unused-ignore]

    asked = json.load(sys.stdin)
    loaded = tokenizer(asked["tokens"])
    read: list[Any] = []
    for name, text, tools in asked["turns"]:
        request: Any = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=tools)
        try:
            found = ToolParserManager.get_tool_parser(name)(loaded, request.tools).extract_tool_calls(text, request)
            read.append([[call.function.name, call.function.arguments] for call in found.tool_calls])
        except Exception as error:  # noqa: BLE001 - the parsers raise anything
            read.append(f"{type(error).__name__}: {error}")
    json.dump(read, sys.stdout)


if __name__ == "__main__":
    main()
