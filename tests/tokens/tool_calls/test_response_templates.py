"""The response templates of transformers, as TRL has them, read the same turns. Each difference is in the table, with who
is right."""

from __future__ import annotations

import pytest

from tests.tokens.tool_calls.spelled_values import TOOLS
from tests.tokens.tool_calls.witness import Reading, Table, differences, listed

FORMS_OF = {
    "qwen3_template": ("Hermes, Qwen 2.5, Qwen 3", "Hermes without spaces", "Hermes with indents"),
    "qwen3_5_template": ("Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5",),
    "nemotron_3_template": ("Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5",),
    "glm4moe_template": ("GLM 4.5, 4.6, Laguna",),
    "llama3_template": ("Llama 3",),
    "gptoss_template": ("gpt-oss, recipient first",),
    "lfm2_2_5_template": ("LFM2",),
    "gemma4_template": ("Gemma 4",),
}
"""Response template -> forms. The template of R1's distillations has no calls."""

UNCLOSED = {"models forget to close their thoughts before a call": ("a call in thoughts without an end",)}
STRIPPED = {"white space at the ends of a value belongs to it: the family's template writes it": (
    "a text of line breaks", "line breaks at both ends", "blanks at both ends", "Unicode", "code",
)}  # fmt: skip
SCHEMAS = {"no reference, enum or `allOf` of a schema is followed": ("a reference", "an enum without type", "allOf")}
MARKUP = "markup in a value ends it"
QWEN3 = {MARKUP: ("markup </tool_call>",), **UNCLOSED}
CODER = {
    **STRIPPED,
    **SCHEMAS,
    **UNCLOSED,
    MARKUP: ("markup </parameter>", "markup </tool_call>"),
    "Python's lists and objects stay text": ("a list", "an object", "everything"),
}
TEMPLATES_WRONG: dict[str, Table] = {
    "qwen3_template": dict.fromkeys(FORMS_OF["qwen3_template"], QWEN3),
    "qwen3_5_template": {FORMS_OF["qwen3_5_template"][0]: CODER},
    "nemotron_3_template": {
        FORMS_OF["nemotron_3_template"][0]: {
            **CODER,
            "thoughts that the prompt opened go on without an end": ("thoughts without an end",),
        }
    },
    "glm4moe_template": {
        "GLM 4.5, 4.6, Laguna": {
            **STRIPPED, **SCHEMAS, **UNCLOSED, MARKUP: ("markup </arg_value>", "markup </tool_call>")
        }
    },
    "llama3_template": {
        "Llama 3": {
            "a call has to be the end of the turn, and there is one": ("two calls", "an answer after a call"),
            "models that were tuned from Llama have thoughts": (
                "thoughts before an answer", "thoughts before a call", "a call in thoughts",
                "a call in thoughts without an end", "thoughts without an end",
            ),
        }
    },
    "gptoss_template": {
        "gpt-oss, recipient first": {
            MARKUP: ("markup <|call|>",), "text before a header is lost": ("text before",)
        }
    },
    "lfm2_2_5_template": {
        "LFM2": {
            **UNCLOSED,
            "escapes stay text, and a quote that is escaped ends the text": (
                "a text of line breaks", "line breaks at both ends", "unbalanced brackets", "quotes", "Unicode",
                "a tab and a backslash", "code", "everything",
            ),
            "a schema's `allOf` is not followed": ("allOf",),
            MARKUP: ("markup )",),
        }
    },
    "gemma4_template": {"Gemma 4": {MARKUP: ("markup <tool_call|>",), **UNCLOSED}},
}  # fmt: skip
"""Template -> form -> reason -> cases that the template reads in another way. Ours are right in all of them: their calls are
what was written, and no text is lost."""


@pytest.mark.long
@pytest.mark.parametrize("name", FORMS_OF)
def test_each_difference_from_response_templates_is_in_the_table(name: str) -> None:
    from transformers.utils.chat_parsing import parse_response
    from trl import chat_template_utils

    template = getattr(chat_template_utils, name)
    end = "<|eot_id|>" if name == "llama3_template" else ""  # its calls have this token
    prompt = "<|im_start|>assistant\n<think>\n" if name == "nemotron_3_template" else ""  # it opens the thoughts

    def theirs(text: str) -> Reading:
        try:
            turn = parse_response(
                text.removeprefix("<think>\n" if prompt else "") + end, template, prefix=prompt, tools=TOOLS
            )
        except ValueError as error:
            return f"{type(error).__name__}: {error}", None, []
        found = [(call["function"]["name"], call["function"]["arguments"]) for call in turn.get("tool_calls", ())]
        return turn.get("content", ""), turn.get("reasoning_content", turn.get("thinking")), found

    assert differences(FORMS_OF[name], theirs) == listed(TEMPLATES_WRONG[name])
