"""vLLM's parsers read the same turns. Each difference is in the table, with who is right."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.vllm_env import PYTHON
from tests.tokens.tool_calls.family_forms import FORMS
from tests.tokens.tool_calls.spelled_values import TOOLS, calls, read
from tests.tokens.tool_calls.witness import NOT_SETTLED, Table, cases_of, listed

PROGRAM = Path(__file__).with_name("vllm_witness.py")
BY_PARSER = {
    **{name: name for name in ("hermes", "qwen3_coder", "seed_oss", "minimax_m2", "minimax_m3", "step3", "kimi_k2")},
    **{name: name for name in ("kimi_k3", "mistral", "llama3_json", "xlam", "pythonic", "lfm2", "olmo3", "gemma4")},
    **{name: name for name in ("functiongemma", "apertus", "granite", "internlm", "longcat", "minicpm5")},
    "glm": "glm47", "phi4_mini": "phi4_mini_json", "granite_functions": "granite-20b-fc", "gigachat": "gigachat3",
    "muse": "muse_glimmer", "tool_calls": "hunyuan_a13b",
}  # fmt: skip
"""Our parser -> vLLM's. Not compared: Hy3's, which takes its marks from the model's own vocabulary; Cohere's, which is a
program of its own; gpt-oss's, which reads ids."""
BY_FORM = {
    "DeepSeek V3.2": "deepseek_v32", "DeepSeek V4": "deepseek_v4", "DeepSeek R1, V3": "deepseek_v3",
    "DeepSeek V3.1": "deepseek_v31",
}  # fmt: skip
TOKEN = re.compile(r"<[|｜]?[\w▁:|｜]+>|</[\w▁:|｜]+>|\[[A-Z_]+\]|<\|\"\|>|<[a-z_]+\|>")
MARKUP, REFERENCE = "markup in a value ends it", "a reference in a schema is not followed"
PYTHON_LISTS, NULL = "Python's lists, objects and None, which the template writes, stay text", "None stays text"
LINES = "a line break at the end of a value belongs to the value in the family's template, which writes values inline"
JSON_VALUES = "a text that looks like JSON becomes JSON whatever its type"
ALL = "all"
PYTHON_CASES = ("a list", "an object", "everything", "null by anyOf", "null by type")
LINE_CASES = ("a text of line breaks", "line breaks at both ends", "code")
VLLM_WRONG: Table = {
    "Hermes, Qwen 2.5, Qwen 3": {MARKUP: ("markup </tool_call>",)},
    "Hermes without spaces": {MARKUP: ("markup </tool_call>",)},
    "Hermes with indents": {MARKUP: ("markup </tool_call>",)},
    "Hermes with `parameters`": {"the key that Llama uses is usual with small models too": (ALL,)},
    "Hermes with a list": {"a list of calls is clear": (ALL,)},
    "Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5": {
        REFERENCE: ("a reference",),
        PYTHON_LISTS: PYTHON_CASES,
        MARKUP: ("markup </parameter>", "markup </function>", "markup <parameter=q>"),
    },
    "Qwen3-Coder without the opener": {
        REFERENCE: ("a reference",),
        PYTHON_LISTS: PYTHON_CASES,
        MARKUP: ("markup </parameter>", "markup </function>", "markup <parameter=q>"),
    },
    "Seed-OSS": {
        REFERENCE: ("a reference",),
        PYTHON_LISTS: PYTHON_CASES,
        MARKUP: ("markup </parameter>", "markup </function>", "markup <parameter=q>"),
        LINES: LINE_CASES,
    },
    "MiniMax-M2": {
        REFERENCE: ("a reference",),
        MARKUP: ("markup </parameter>", "markup </invoke>", 'markup <parameter name="q">'),
    },
    "MiniMax-M3": {REFERENCE: ("a reference",)},
    "DeepSeek V3.2": {
        REFERENCE: ("a reference",),
        MARKUP: tuple(f"markup </｜DSML｜{tag}>" for tag in ("parameter", "invoke", "function_calls")),
    },
    "DeepSeek V4": {
        REFERENCE: ("a reference",),
        MARKUP: tuple(f"markup </｜DSML｜{tag}>" for tag in ("parameter", "invoke", "tool_calls")),
    },
    "MiniCPM5": {
        MARKUP: ("markup </param>", "markup </function>", "markup <param>"),
        LINES: ("code",),
    },
    "GLM 4.5, 4.6, Laguna": {REFERENCE: ("a reference",), MARKUP: ("markup </arg_value>", "markup </tool_call>")},
    "GLM 4.7, 5": {REFERENCE: ("a reference",), MARKUP: ("markup </arg_value>", "markup </tool_call>")},
    "Kimi K3": {MARKUP: ("markup <|close|>argument<|sep|>", "markup <|close|>call<|sep|>")},
    "Kimi K2, K2.5": {
        "JSON is typed by the schema a second time, but references are not followed": ("a reference",),
        MARKUP: ("markup <|tool_call_end|>", "markup <|tool_calls_section_end|>"),
    },
    "Kimi K2 without the section": {"models leave the section out": (ALL,)},
    "DeepSeek V3.1": {MARKUP: ("markup <｜tool▁call▁end｜>",)},
    "Mistral": {"the older form is read only with Mistral's own older tokenizers": (ALL,)},
    "Magistral, Devstral": {REFERENCE: ("a reference",), MARKUP: ("markup [TOOL_CALLS]",)},
    "Mistral Small 3.2": {"the id becomes a part of the name": (ALL,)},
    "xLAM": {"a call behind a text is not seen": ("text before",)},
    "Llama 4, ToolACE": {"a call behind a text is not seen": ("text before",)},
    "Llama 4 with its tags": {"the tags of Llama 4 are not known": (ALL,)},
    "LFM2": {MARKUP: ("markup <|tool_call_end|>",)},
    "LFM2 with JSON": {"the model's card allows JSON": (ALL,)},
    "OLMo 3": {MARKUP: ("markup </function_calls>",)},
    "Gemma 4": {REFERENCE: ("a reference",), MARKUP: ("markup <tool_call|>",)},
    "FunctionGemma": {
        JSON_VALUES: ("texts that look like values",),
        PYTHON_LISTS: (*PYTHON_CASES, "booleans", "allOf"),
    },
    "Apertus": {MARKUP: ("markup <|tools_suffix|>",)},
    "Apriel, Hunyuan A13B, Jamba": {MARKUP: ("markup </tool_calls>",)},
    "MiniMax-M1": {"the parser is Hunyuan's, which needs a list": (ALL,)},
    "Phi-4-mini": {"only the word functools is known, not the tokens": (ALL,)},
    "Phi-4-mini, FireFunction": {
        "the first closing bracket ends the list": (
            "unbalanced brackets", "code", "a list", "lists in a list", "everything", "markup ]",
        )
    },
    "Granite 3": {REFERENCE: ("a reference",)},
    "Granite 20B": {MARKUP: ("markup <function_call>",)},
    "InternLM": {"it has one call a turn": ("two calls",), MARKUP: ("markup <|action_end|>",)},
    "GigaChat": {"it has one call a turn": ("two calls",)},
    "LongCat": {MARKUP: ("markup </longcat_tool_call>",)},
    "Muse Glimmer": {
        JSON_VALUES: ("texts that look like values",),
        MARKUP: ("markup </atem:parameter>", "markup </atem:invoke>"),
    },
}  # fmt: skip
"""Form -> reason -> cases that vLLM reads in another way. Ours are right in all of them: they are what was written."""


@pytest.mark.long
def test_each_difference_from_vllms_parsers_is_in_the_table() -> None:
    if not PYTHON.exists():
        pytest.skip("no vLLM for CPUs: deploy/vllm/cpu-env.sh installs it")
    asked, turns = [], []
    for form, family in FORMS.items():
        theirs = BY_FORM.get(form) or BY_PARSER.get(family.parser)
        if theirs is not None and form not in NOT_SETTLED:
            for case, (text, wanted) in cases_of(form).items():
                asked.append((form, case, text, wanted))
                turns.append([theirs, text, TOOLS])
    special = sorted({token for _, _, text, _ in asked for token in TOKEN.findall(text)})
    job = json.dumps({"tokens": special, "turns": turns})
    done = subprocess.run([PYTHON, PROGRAM], input=job, capture_output=True, text=True, check=True, timeout=600)
    different: dict[str, set[str]] = {}
    for (form, case, text, wanted), theirs in zip(asked, json.loads(done.stdout), strict=True):
        assert read(FORMS[form], text).calls == calls(*wanted)
        if [(name, _loaded(text)) for name, text in (theirs if isinstance(theirs, list) else ())] != list(wanted):
            different.setdefault(form, set()).add(case)
    wrong = listed(VLLM_WRONG)
    for form, cases in wrong.items():
        if ALL in cases:
            wrong[form] = {case for other, case, _, _ in asked if other == form}
    assert different == wrong


def _loaded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
