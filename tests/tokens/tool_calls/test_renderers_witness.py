"""The parsers of the library `renderers` read the same turns, and ours read the turns that it writes. Each difference is in
the table, with who is right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from rollyard.tokens.tool_calls.parser_choice import BUILT_IN
from tests.tokens.tool_calls.family_forms import FORMS
from tests.tokens.tool_calls.spelled_values import NULLS, STOP, TOOLS, VALUES, calls
from tests.tokens.tool_calls.witness import Reading, Table, calling, differences, listed

SINGLE = re.compile(r"[<｜][^\s<>]*[｜>]")


class Bytes:
    """Tokenizer of bytes, and of each token that a renderer asks for."""

    unk_token_id = None
    name_or_path = "bytes"

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.eos_token_id = self.convert_tokens_to_ids("<eos>")

    def convert_tokens_to_ids(self, token: str) -> int:
        if token not in self.tokens:
            self.tokens.append(token)
        return 256 + self.tokens.index(token)

    def encode(self, text: str, **_: Any) -> list[int]:
        if SINGLE.fullmatch(text):  # some renderers ask in this way
            return [self.convert_tokens_to_ids(text)]
        ordered = sorted(self.tokens, key=len, reverse=True)
        pieces = re.split(f"({'|'.join(map(re.escape, ordered))})", text)
        return [
            i for piece in pieces for i in ([256 + self.tokens.index(piece)] if piece in ordered else piece.encode())
        ]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return b"".join(bytes([i]) if i < 256 else self.tokens[i - 256].encode() for i in ids).decode(errors="replace")


def of(parser: str, *without: str) -> tuple[str, ...]:
    """Return the names of a parser's forms."""
    return tuple(form for form, family in FORMS.items() if family.parser == parser and form not in without)


FORMS_OF = {
    "qwen3": of("hermes"),
    "qwen3.5": of("qwen3_coder", "Qwen3-Coder on one line"),
    "minimax-m2": of("minimax_m2"),
    "deepseek-v3": ("DeepSeek R1, V3",),
    "deepseek-v4": ("DeepSeek V4",),
    "glm-4.5": ("GLM 4.5, 4.6, Laguna",),
    "laguna-xs.2": ("GLM 4.5, 4.6, Laguna",),
    "glm-5": ("GLM 4.7, 5",),
    "hy3": of("hunyuan3"),
    "kimi-k2": of("kimi_k2"),
    "llama-3": of("llama3_json"),
    "gemma4": of("gemma4"),
    "gpt-oss": of("harmony"),
}
"""Renderer -> forms that its parser reads."""
WRITERS = {
    **{name: FORMS[forms[0]].parser for name, forms in FORMS_OF.items() if name != "gpt-oss"},
    "qwen3-vl": "hermes",
    "deepseek-r1": "deepseek",
    "kimi-k2.5": "kimi_k2",
    **dict.fromkeys(("qwen3.6", "qwen3.8", "nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), "qwen3_coder"),
    **dict.fromkeys(("glm-5.1", "glm-5.3", "laguna-m.1", "laguna-xs-2.1", "laguna-s-2.1"), "glm"),
}
"""Renderer -> our parser. Missing: gpt-oss, whose renderer downloads a vocabulary; prime-qwen3, whose renderer needs offsets
of characters; Inkling, which has no parser of ours."""
ENDS = (
    "a text of line breaks", "line breaks at both ends", "blanks at both ends", "Unicode", "code",
)  # fmt: skip
STRIPPED = {"white space at the ends of a value belongs to it: the family's template writes it": ENDS}
ENUM = {"an enum of texts has no type, and a text in it counts as broken JSON": ("texts that look like values",)}
AFTER = {"text after a call is a part of the answer": ("an answer after a call",)}
UNCLOSED = {"models forget to close their thoughts before a call": ("a call in thoughts without an end",)}
MARKUP = "markup in a value ends it"
IN_THOUGHTS = {
    "a call in closed thoughts is a draft: the family's template writes calls behind them": ("a call in thoughts",)
}
OPENED = {"text counts as thoughts, whether or not the prompt opened them": ("text before",)}

TUNED = {"models that were tuned from Llama have thoughts": (
    "thoughts before an answer", "thoughts before a call", "a call in thoughts",
    "a call in thoughts without an end", "thoughts without an end",
)}  # fmt: skip


def marked(*markup: str) -> dict[str, tuple[str, ...]]:
    return {MARKUP: tuple(f"markup {mark}" for mark in markup)}


QWEN3 = {**marked("</tool_call>"), **AFTER}
GLM = {**STRIPPED, **ENUM, **marked("</arg_value>", "</tool_call>")}
RENDERERS_WRONG: dict[str, Table] = {
    "qwen3": {
        "Hermes, Qwen 2.5, Qwen 3": QWEN3,
        "Hermes without spaces": QWEN3,
        "Hermes with indents": QWEN3,
        "Hermes with `parameters`": {
            "the key that Llama uses is usual with small models too": calling("Hermes with `parameters`", "no argument"),
        },
        "Hermes with a list": {"a list of calls is clear": calling("Hermes with a list")},
    },
    "qwen3.5": {
        "Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5": {
            **STRIPPED,
            **ENUM,
            **AFTER,
            **marked("</parameter>", "</tool_call>"),
            "Python's values, which the template writes, stay text": (
                "booleans", "a list", "an object", "allOf", "everything", "null by anyOf", "null by type",
            ),
        },
        "Qwen3-Coder without the opener": {"models leave the opener out": calling("Qwen3-Coder without the opener")},
    },
    "minimax-m2": {
        "MiniMax-M2": {**STRIPPED, **ENUM, **AFTER, **marked("</parameter>", "</invoke>", "</minimax:tool_call>")}
    },
    "deepseek-v3": {
        "DeepSeek R1, V3": {**marked("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"), **AFTER, **UNCLOSED}
    },
    "deepseek-v4": {
        "DeepSeek V4": {
            **marked(*(f"</｜DSML｜{tag}>" for tag in ("parameter", "invoke", "tool_calls"))), **AFTER, **IN_THOUGHTS
        }
    },
    "glm-4.5": {"GLM 4.5, 4.6, Laguna": {**GLM, **OPENED, **IN_THOUGHTS}},
    "laguna-xs.2": {"GLM 4.5, 4.6, Laguna": {**GLM, **AFTER, **UNCLOSED}},
    "glm-5": {"GLM 4.7, 5": {**GLM, **OPENED, **IN_THOUGHTS}},
    "hy3": {
        "Hy3": {
            **STRIPPED, **ENUM, **AFTER, **UNCLOSED, **marked("</arg_value:opensource>", "</tool_call:opensource>")
        }
    },
    "kimi-k2": {
        "Kimi K2, K2.5": {**marked("<|tool_call_end|>", "<|tool_calls_section_end|>"), **AFTER},
        "Kimi K2 without the section": {"models leave the section out": calling("Kimi K2 without the section")},
    },
    "llama-3": {
        "Llama 3": {
            "a call has to be the whole turn, and there is one": ("two calls", "text before", "an answer after a call"),
            **TUNED,
        },
        "Llama 3 in a code fence": {**TUNED, "models write the fence": calling("Llama 3 in a code fence")},
        "Llama 3 behind its tag": {**TUNED, "the tag is the family's own": calling("Llama 3 behind its tag")},
    },
    "gemma4": {"Gemma 4": marked("<tool_call|>")},
    "gpt-oss": {
        "gpt-oss": {
            **marked("<|call|>", "<|end|>", "<|start|>assistant"),
            "text before a header is lost": ("text before",),
        },
        "gpt-oss, recipient first": {
            **marked("<|call|>", "<|end|>"),
            "text before a header is lost": ("text before",),
        },
    },
}  # fmt: skip
"""Renderer -> form -> reason -> cases that the renderer reads in another way. Ours are right in all of them: their calls are
what was written, and no text is lost."""


def made(name: str) -> tuple[Any, Bytes]:
    from renderers import config_from_name, create_renderer

    tokenizer = Bytes()
    return create_renderer(tokenizer, config_from_name(name)), tokenizer


def parsed(name: str) -> Any:
    """Return a function that reads a turn with a renderer's parser."""
    if name == "gpt-oss":  # the renderer itself downloads a vocabulary
        from renderers.parsing import parse_gpt_oss

        bytes_ = Bytes()
        ends = ("return", "call", "start", "end", "channel", "message", "constrain")
        ids = {f"{end}_id": bytes_.convert_tokens_to_ids(f"<|{end}|>") for end in ends}
        return lambda text: parse_gpt_oss(bytes_, bytes_.encode(f"<|start|>assistant{text}"), **ids)
    renderer, tokenizer = made(name)
    return lambda text: renderer.parse_response(tokenizer.encode(text), tools=TOOLS)


@pytest.mark.long
@pytest.mark.parametrize("name", FORMS_OF)
def test_each_difference_from_the_parsers_of_renderers_is_in_the_table(name: str) -> None:
    parse = parsed(name)

    def theirs(text: str) -> Reading:
        turn = parse(text)
        found = [(call.name, call.arguments) for call in turn.tool_calls if call.status.value == "ok"]
        return turn.content, turn.reasoning_content, found

    assert differences(FORMS_OF[name], theirs) == listed(RENDERERS_WRONG[name])


@pytest.mark.long
@pytest.mark.parametrize(("name", "parser"), WRITERS.items())
def test_what_renderers_writes_is_read_as_it_was_meant(name: str, parser: str) -> None:
    renderer, tokenizer = made(name)
    stops = renderer.get_stop_token_ids()
    for arguments in {**VALUES, **NULLS}.values():
        for wanted in ([("get", arguments)], [("get", arguments), STOP])[: 1 if name == "llama-3" else 2]:
            written = [
                {"id": f"functions.{tool}:{i}", "type": "function", "function": {"name": tool, "arguments": given}}
                for i, (tool, given) in enumerate(wanted)
            ]
            said = {"role": "assistant", "content": "", "reasoning_content": "I look.", "tool_calls": written}
            all_ids = renderer.render([{"role": "user", "content": "Go."}, said])
            pairs = zip(all_ids.token_ids, all_ids.sampled_mask, strict=True)
            text = tokenizer.decode([i for i, sampled in pairs if sampled and i not in stops])
            turn = BUILT_IN[parser].make(TOOLS).parse(text)
            thoughts = "I look." if "I look." in text else None  # some write no thoughts unless told to
            assert (turn.error, turn.calls, turn.content, turn.thoughts) == (None, calls(*wanted), "", thoughts)
