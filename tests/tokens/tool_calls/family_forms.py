"""How each model family writes thoughts and calls. Written from the families' chat templates, apart from the parsers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Call = tuple[str, dict[str, Any]]
Write = Callable[[Sequence[Call]], str]


@dataclass(frozen=True)
class FamilyForm:
    parser: str
    write: Write
    markup: tuple[str, ...]
    """Markup of the family, which may stand inside an argument as text."""
    think: tuple[str, str] | None = ("<think>", "</think>")
    tagged: bool = False
    """Whether values are text without quotes, whose types only the schema tells."""
    nulls: bool = True
    """Whether null can be written."""
    prose: bool = True
    """Whether the family's marks are never ordinary text."""
    text_after: bool = True
    """Whether text may follow a call."""
    trims: bool = False
    """Whether the form cannot show line breaks at the ends of a value."""


def dumped(value: Any, **style: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **style)


def in_tags(opening: str, closing: str, keys: tuple[str, str] = ("name", "arguments"), **style: Any) -> Write:
    def write(calls: Sequence[Call]) -> str:
        return "\n".join(f"{opening}\n{dumped({keys[0]: n, keys[1]: a}, **style)}\n{closing}" for n, a in calls)

    return write


def listed(opening: str, closing: str, keys: tuple[str, str] = ("name", "arguments"), **style: Any) -> Write:
    return lambda calls: f"{opening}{dumped([{keys[0]: n, keys[1]: a} for n, a in calls], **style)}{closing}"


def around(opening: str, one: Callable[[str, dict[str, Any]], str], closing: str = "", between: str = "") -> Write:
    return lambda calls: opening + between.join(one(name, arguments) for name, arguments in calls) + closing


def as_text(value: Any, *, python: bool = False) -> str:
    """Return a value as templates write it between tags."""
    if isinstance(value, str):
        return value
    return str(value) if python else dumped(value)


def tags(
    call: str, end: str, argument: str, value_end: str, *, gap: str = "\n", newline: str = "", python: bool = False
) -> Callable[[str, dict[str, Any]], str]:
    def one(name: str, arguments: dict[str, Any]) -> str:
        pairs = "".join(
            f"{argument.format(key)}{newline}{as_text(value, python=python)}{newline}{value_end}{gap}"
            for key, value in arguments.items()
        )
        return f"{call.format(name)}{gap}{pairs}{end}"

    return one


def dsml(name: str, arguments: dict[str, Any]) -> str:
    pairs = "".join(
        f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{as_text(value)}</｜DSML｜parameter>\n'
        for key, value in arguments.items()
    )
    return f'<｜DSML｜invoke name="{name}">\n{pairs}</｜DSML｜invoke>\n'


def kimi_k3(name: str, arguments: dict[str, Any]) -> str:
    types = {str: "string", int: "number", float: "number", bool: "boolean", list: "array", dict: "object"}
    pairs = "".join(
        f'<|open|>argument key="{key}" type="{types.get(type(value), "null")}"<|sep|>{as_text(value)}<|close|>argument<|sep|>'
        for key, value in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{pairs}<|close|>call<|sep|>'


def gemma(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma(inner, quote)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma(inner, quote) for inner in value) + "]"
    return dumped(value)


def function_gemma(name: str, arguments: dict[str, Any]) -> str:
    pairs = ",".join(f"{key}:<escape>{as_text(value, python=True)}<escape>" for key, value in arguments.items())
    return f"<start_function_call>call:{name}{{{pairs}}}<end_function_call>"


def python_call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def m3(value: Any) -> str:
    prefix = "]<]minimax[>["
    if isinstance(value, dict):
        return "".join(f"{prefix}<{key}>{m3(inner)}{prefix}</{key}>" for key, inner in value.items())
    if isinstance(value, list):
        return "".join(f"{prefix}<item>{m3(inner)}{prefix}</item>" for inner in value)
    return as_text(value)


def minimax_m3(name: str, arguments: dict[str, Any]) -> str:
    return f']<]minimax[>[<invoke name="{name}">{m3(arguments)}]<]minimax[>[</invoke>\n'


def numbered(calls: Sequence[Call], one: Callable[[int, str, str], str]) -> str:
    return "".join(one(i, name, dumped(arguments)) for i, (name, arguments) in enumerate(calls))


HERMES = ("<tool_call>", "</tool_call>")
QWEN = tags("<function={}>", "</function>", "<parameter={}>", "</parameter>", newline="\n", python=True)
SEED = tags("<function={}>", "</function>", "<parameter={}>", "</parameter>", python=True)
INVOKE = tags('<invoke name="{}">', "</invoke>", '<parameter name="{}">', "</parameter>")
ATEM = tags('<atem:invoke name="{}">', "</atem:invoke>", '<atem:parameter name="{}">', "</atem:parameter>")
STEP = tags('<steptml:invoke name="{}">', "</steptml:invoke>", '<steptml:parameter name="{}">', "</steptml:parameter>")
CPM = tags('<function name="{}">', "</function>", '<param name="{}">', "</param>", gap="", python=True)
GLM = tags("<tool_call>{}", "</tool_call>", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>")
GLM_47 = tags("<tool_call>{}", "</tool_call>", "<arg_key>{}</arg_key><arg_value>", "</arg_value>", gap="")
HY3 = tags(
    "<tool_call:opensource>{}<tool_sep:opensource>", "</tool_call:opensource>\n",
    "<arg_key:opensource>{}</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>",
)  # fmt: skip
FORMS: dict[str, FamilyForm] = {
    "Hermes, Qwen 2.5, Qwen 3": FamilyForm("hermes", in_tags(*HERMES), HERMES),
    "Hermes without spaces": FamilyForm("hermes", in_tags(*HERMES, separators=(",", ":")), HERMES),
    "Hermes with indents": FamilyForm("hermes", in_tags(*HERMES, indent=2), HERMES),
    "Hermes with `parameters`": FamilyForm("hermes", in_tags(*HERMES, keys=("name", "parameters")), HERMES),
    "Hermes with a list": FamilyForm("hermes", listed(*HERMES), HERMES),
    "Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5": FamilyForm(
        "qwen3_coder",
        lambda calls: "\n".join(f"<tool_call>\n{QWEN(*call)}\n</tool_call>" for call in calls),
        ("</parameter>", "</function>", "</tool_call>", "<tool_call>", "<parameter=q>", "<function=y>"),
        tagged=True,
    ),
    "Qwen3-Coder without the opener": FamilyForm(
        "qwen3_coder",
        lambda calls: "\n".join(f"{QWEN(*call)}\n</tool_call>" for call in calls),
        ("</parameter>", "</function>", "</tool_call>", "<parameter=q>"),
        tagged=True,
        text_after=False,
    ),
    "Qwen3-Coder on one line": FamilyForm(
        "qwen3_coder",
        around("<tool_call>", SEED, "</tool_call>"),
        ("</parameter>", "</function>", "</tool_call>", "<parameter=q>"),
        tagged=True,
        trims=True,
    ),
    "Seed-OSS": FamilyForm(
        "seed_oss",
        lambda calls: "\n".join(f"<seed:tool_call>\n{SEED(*call)}\n</seed:tool_call>" for call in calls),
        ("</parameter>", "</function>", "</seed:tool_call>", "<parameter=q>"),
        think=("<seed:think>", "</seed:think>"),
        tagged=True,
    ),
    "MiniMax-M2": FamilyForm(
        "minimax_m2",
        around("<minimax:tool_call>\n", INVOKE, "\n</minimax:tool_call>", "\n"),
        ("</parameter>", "</invoke>", "</minimax:tool_call>", '<parameter name="q">'),
        tagged=True,
    ),
    "MiniMax-M3": FamilyForm(
        "minimax_m3",
        around("]<]minimax[>[<tool_call>\n", minimax_m3, "]<]minimax[>[</tool_call>"),
        ("</invoke>", "<item>", "</tool_call>"),
        think=("<mm:think>", "</mm:think>"),
        tagged=True,
        nulls=False,
    ),
    "DeepSeek V3.2": FamilyForm(
        "deepseek_dsml",
        around("<｜DSML｜function_calls>\n", dsml, "</｜DSML｜function_calls>"),
        ("</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>"),
    ),
    "DeepSeek V4": FamilyForm(
        "deepseek_dsml",
        around("<｜DSML｜tool_calls>\n", dsml, "</｜DSML｜tool_calls>"),
        ("</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜tool_calls>"),
    ),
    "MiniCPM5": FamilyForm("minicpm5", around("", CPM, "", "\n"), ("</param>", "</function>", "<param>"), tagged=True),
    "Step 3": FamilyForm(
        "step3",
        lambda calls: (
            "<｜tool_calls_begin｜>"
            + "".join(f"<｜tool_call_begin｜>function<｜tool_sep｜>{STEP(*c)}<｜tool_call_end｜>" for c in calls)
            + "<｜tool_calls_end｜>"
        ),
        ("</steptml:parameter>", "</steptml:invoke>", "<｜tool_call_end｜>"),
        tagged=True,
    ),
    "GLM 4.5, 4.6, Laguna": FamilyForm(
        "glm", around("", GLM, "", "\n"), ("</arg_value>", "</tool_call>", "<arg_key>", "<tool_call>"), tagged=True
    ),
    "GLM 4.7, 5": FamilyForm("glm", around("", GLM_47), ("</arg_value>", "</tool_call>", "<arg_key>"), tagged=True),
    "Hy3": FamilyForm(
        "hunyuan3",
        around("<tool_calls:opensource>\n", HY3, "</tool_calls:opensource>"),
        ("</arg_value:opensource>", "</tool_call:opensource>"),
        think=("<think:opensource>", "</think:opensource>"),
        tagged=True,
    ),
    "Kimi K3": FamilyForm(
        "kimi_k3",
        around("<|open|>tools<|sep|>", kimi_k3, "<|close|>tools<|sep|>"),
        ("<|close|>argument<|sep|>", "<|close|>call<|sep|>"),
        think=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ),
    "Kimi K2, K2.5": FamilyForm(
        "kimi_k2",
        lambda calls: (
            "<|tool_calls_section_begin|>"
            + numbered(
                calls,
                lambda i, n, a: (
                    f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{a}<|tool_call_end|>"
                ),
            )
            + "<|tool_calls_section_end|>"
        ),
        ("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    ),
    "Kimi K2 without the section": FamilyForm(
        "kimi_k2",
        lambda calls: numbered(
            calls,
            lambda i, n, a: f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|> {a} <|tool_call_end|>",
        ),
        ("<|tool_call_end|>", "<|tool_call_begin|>"),
        text_after=False,
    ),
    "Solar Open": FamilyForm(
        "solar",
        lambda calls: (
            "<|tool_calls|>"
            + numbered(
                calls,
                lambda i, n, a: f"<|tool_call:begin|>id{i}<|tool_call:name|>{n}<|tool_call:args|>{a}<|tool_call:end|>",
            )
            + "<|calls|>"
        ),
        ("<|tool_call:end|>", "<|calls|>"),
        think=("<|think|>", "<|end|>"),
    ),
    "DeepSeek R1, V3": FamilyForm(
        "deepseek",
        lambda calls: (
            "<｜tool▁calls▁begin｜>"
            + "\n".join(
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{dumped(a)}\n```<｜tool▁call▁end｜>"
                for n, a in calls
            )
            + "<｜tool▁calls▁end｜>"
        ),
        ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "```"),
    ),
    "DeepSeek V3.1": FamilyForm(
        "deepseek",
        lambda calls: (
            "<｜tool▁calls▁begin｜>"
            + "".join(f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumped(a)}<｜tool▁call▁end｜>" for n, a in calls)
            + "<｜tool▁calls▁end｜>"
        ),
        ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    ),
    "Mistral": FamilyForm(
        "mistral", listed("[TOOL_CALLS] ", ""), ("[TOOL_CALLS]", "[ARGS]"), ("[THINK]", "[/THINK]"), text_after=False
    ),
    "Magistral, Devstral": FamilyForm(
        "mistral",
        lambda calls: "".join(f"[TOOL_CALLS]{n}[ARGS]{dumped(a)}" for n, a in calls),
        ("[TOOL_CALLS]", "[ARGS]"),
        ("[THINK]", "[/THINK]"),
        text_after=False,
    ),
    "Mistral Small 3.2": FamilyForm(
        "mistral",
        lambda calls: "".join(f"[TOOL_CALLS]{n}[CALL_ID]abcdefgh{i}[ARGS]{dumped(a)}" for i, (n, a) in enumerate(calls)),
        ("[TOOL_CALLS]", "[ARGS]"),
        ("[THINK]", "[/THINK]"),
        text_after=False,
    ),
    "Llama 3": FamilyForm(
        "llama3_json",
        lambda calls: "; ".join(dumped({"name": n, "parameters": a}) for n, a in calls),
        ("<|python_tag|>", '"}'),
        prose=False,
    ),
    "Llama 3 in a code fence": FamilyForm(
        "llama3_json",
        lambda calls: "```json\n" + "\n".join(dumped({"name": n, "parameters": a}) for n, a in calls) + "\n```",
        ("<|python_tag|>", "```"),
        prose=False,
    ),
    "Llama 3 behind its tag": FamilyForm(
        "llama3_json",
        lambda calls: "<|python_tag|>" + "; ".join(dumped({"name": n, "arguments": a}) for n, a in calls),
        ("<|python_tag|>", '"}'),
        prose=False,
    ),
    "xLAM": FamilyForm("xlam", listed("", ""), ("[", "]}"), prose=False),
    "Llama 4, ToolACE": FamilyForm(
        "pythonic", around("[", python_call, "]", ", "), ("]", ")", "[get(path='x')]"), prose=False
    ),
    "Llama 4 with its tags": FamilyForm(
        "pythonic", around("<|python_start|>[", python_call, "]<|python_end|>", ", "), ("]", ")"), prose=False
    ),
    "LFM2": FamilyForm(
        "lfm2",
        around("<|tool_call_start|>[", python_call, "]<|tool_call_end|>", ", "),
        ("<|tool_call_end|>", "]", ")"),
    ),
    "LFM2 with JSON": FamilyForm(
        "lfm2", listed("<|tool_call_start|>", "<|tool_call_end|>"), ("<|tool_call_end|>", "]", ")")
    ),
    "OLMo 3": FamilyForm(
        "olmo3", around("<function_calls>\n", python_call, "\n</function_calls>", "\n"), ("</function_calls>", "\n")
    ),
    "Gemma 4": FamilyForm(
        "gemma4",
        around(
            "", lambda n, a: f"<|tool_call>call:{n}{gemma(a, '<|' + chr(34) + '|>')}<tool_call|>"
        ),
        ("<tool_call|>", "}", "<|tool_call>"),
        ("<|channel>thought", "<channel|>"),
    ),
    "FunctionGemma": FamilyForm(
        "functiongemma", around("", function_gemma), ("<end_function_call>", "}"), tagged=True
    ),
    "Command A": FamilyForm(
        "cohere",
        listed("<|START_ACTION|>", "<|END_ACTION|>", ("tool_name", "parameters"), indent=4),
        ("<|END_ACTION|>", "]"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    "Command R": FamilyForm(
        "command_r", listed("Action:\n```json\n", "\n```", ("tool_name", "parameters")), ("Action:", "```"), prose=False
    ),
    "Apertus": FamilyForm(
        "apertus",
        lambda calls: f"<|tools_prefix|>{dumped([{n: a} for n, a in calls])}<|tools_suffix|>",
        ("<|tools_suffix|>", "]"),
        ("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    "Nemotron Nano 2": FamilyForm("nemotron_json", listed("<TOOLCALL>", "</TOOLCALL>"), ("</TOOLCALL>",)),
    "Apriel, Hunyuan A13B, Jamba": FamilyForm("tool_calls", listed("<tool_calls>", "</tool_calls>"), ("</tool_calls>",)),
    "MiniMax-M1": FamilyForm(
        "tool_calls",
        around("<tool_calls>\n", lambda n, a: dumped({"name": n, "arguments": a}), "\n</tool_calls>", "\n"),
        ("</tool_calls>",),
    ),
    "Phi-4-mini": FamilyForm("phi4_mini", listed("<|tool_call|>", "<|/tool_call|>"), ("<|/tool_call|>", "]")),
    "Phi-4-mini, FireFunction": FamilyForm("phi4_mini", listed("functools", ""), ("functools[", "]"), text_after=False),
    "Granite 3": FamilyForm("granite", listed("<|tool_call|>", ""), ("<|tool_call|>", "]")),
    "Granite 20B": FamilyForm(
        "granite_functions",
        around("", lambda n, a: f"<function_call> {dumped({'name': n, 'arguments': a})}", "", "\n"),
        ("<function_call>",),
    ),
    "InternLM": FamilyForm(
        "internlm",
        in_tags("<|action_start|><|plugin|>", "<|action_end|>", ("name", "parameters")),
        ("<|action_end|>",),
    ),
    "GigaChat": FamilyForm(
        "gigachat",
        around("", lambda n, a: f"<|function_call|>{dumped({'name': n, 'arguments': a})}"),
        ("<|function_call|>",),
    ),
    "LongCat": FamilyForm(
        "longcat",
        in_tags("<longcat_tool_call>", "</longcat_tool_call>"),
        ("</longcat_tool_call>",),
        ("<longcat_think>", "</longcat_think>"),
    ),
    "Functionary 3.1": FamilyForm(
        "functionary", around("", lambda n, a: f"<function={n}>{dumped(a)}</function>"), ("</function>", "<function=x>")
    ),
    "Functionary 3.2": FamilyForm(
        "functionary_v3.2", around("", lambda n, a: f">>>{n}\n{dumped(a)}"), (">>>all",), think=None, prose=False,
        text_after=False,
    ),
    "gpt-oss": FamilyForm(
        "harmony",
        around(
            "",
            lambda n, a: f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{dumped(a)}<|call|>",
            "",
            "<|start|>assistant",
        ),
        ("<|call|>", "<|end|>", "<|message|>", "<|start|>assistant"),
        think=None,
        text_after=False,
    ),
    "gpt-oss, recipient first": FamilyForm(
        "harmony",
        around(
            "", lambda n, a: f" to=functions.{n}<|channel|>commentary json<|message|>{dumped(a)}<|call|>", "",
            "<|start|>assistant",
        ),
        ("<|call|>", "<|end|>"),
        think=None,
        text_after=False,
    ),
    "Muse Glimmer": FamilyForm(
        "muse",
        lambda calls: "<|start|>assistant".join(
            f" to={n}<|message|><atem:function_calls>\n{ATEM(n, a)}\n</atem:function_calls><|eom|>" for n, a in calls
        ),
        ("</atem:parameter>", "</atem:invoke>"),
        think=None,
        tagged=True,
        text_after=False,
    ),
}  # fmt: skip
