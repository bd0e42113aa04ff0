"""Turns as models write them, right and wrong, with the reading that was decided before any parser read them.

`tests/tokens/tool_calls/family_forms.py` writes values in each family's form. Here the form itself varies: Python words in
JSON, tags that are missing, doubled or spelled in another way, calls of other families, turns that end in a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

Called = tuple[str, dict[str, Any]]


class Must(Enum):
    """Outcome that a turn must have."""

    READ = "read"
    """Its calls are read, and nothing is told."""
    TOLD = "told"
    """The model is told; only the calls before the mistake are read."""
    EITHER = "either"
    """Its calls are read, or the model is told."""


@dataclass(frozen=True)
class Written:
    text: str
    calls: tuple[Called, ...]
    must: Must = Must.READ
    ends: bool = True
    """Whether the turn ends with a token that ends turns."""


@dataclass(frozen=True)
class WrittenFamily:
    parser: str
    template: str
    """Name in the corpus of templates."""
    turn: str
    """Pattern of a sampled turn in a prompt."""
    turns: dict[str, Written]
    call_stop: str | None = None
    """Token that ends a turn with calls, if another one ends an answer."""


def _property(**schema: Any) -> dict[str, Any]:
    return schema


SIZE = {"type": "object", "properties": {"w": {"type": "integer"}, "h": {"type": "integer"}}}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "edit",
            "description": "Edit a file.",
            "parameters": {
                "type": "object",
                "properties": {
                    **{name: _property(type="string") for name in ("path", "old", "new")},
                    "count": _property(type="integer"),
                    "fuzzy": _property(type="boolean"),
                    "scale": _property(type="number"),
                    "lines": _property(type="array", items={"type": "integer"}),
                    "tags": _property(type="array", items={"type": "string"}),
                    "meta": _property(type="object"),
                    "level": _property(enum=[1, 2, 3]),
                    "limit": _property(anyOf=[{"type": "integer"}, {"type": "null"}]),
                    "when": _property(type=["string", "integer"]),
                    "size": {"$ref": "#/$defs/Size"},
                    "free": _property(description="Anything."),
                },
                "required": ["path"],
                "$defs": {"Size": SIZE},
            },
        },
    },
    *(
        {"type": "function", "function": {"name": name, "description": "Do it.", "parameters": schema}}
        for name, schema in (
            ("now", {"type": "object", "properties": {}}),
            ("fs.read-file", {"type": "object", "properties": {"path": {"type": "string"}}}),
        )
    ),
]
EDIT: Called = ("edit", {"path": "a.py"})
NOW: Called = ("now", {})
HERMES = '<tool_call>\n{"name": "edit", "arguments": {"path": "a.py"}}\n</tool_call>'
BARE = '{"name": "edit", "arguments": {"path": "a.py"}}'

JSON: dict[str, tuple[str, dict[str, Any]]] = {
    "compact": ('{"path":"a.py","count":5,"fuzzy":true}', {"path": "a.py", "count": 5, "fuzzy": True}),
    "CRLF and tabs": ('{\r\n\t"path":\t"a.py"\r\n}', {"path": "a.py"}),
    "escapes": (r'{"old": "say \"hi\"\n\t\\d+", "path": "\/etc"}', {"old": 'say "hi"\n\t\\d+', "path": "/etc"}),
    "escaped Unicode": (r'{"path": "\u6f22\u5b57 \ud83c\udf89 \u0000"}', {"path": "漢字 🎉 \x00"}),
    "code fence in a value": ('{"new": "```json\\n{\\"a\\": 1}\\n```"}', {"new": '```json\n{"a": 1}\n```'}),
    "thought tags in a value": ('{"new": "a </think> b <think> c"}', {"new": "a </think> b <think> c"}),
    "a call in a value": (
        '{"new": "{\\"name\\": \\"now\\", \\"arguments\\": {}}"}',
        {"new": '{"name": "now", "arguments": {}}'},
    ),
    "numbers": ('{"count": -3, "scale": 1.5e-3, "free": 1E5}', {"count": -3, "scale": 0.0015, "free": 100000.0}),
    "a number as a text": ('{"count": "5"}', {"count": "5"}),
    "nested": (
        '{"meta": {"a": [1, [2, {"c": null}]]}, "lines": []}',
        {"meta": {"a": [1, [2, {"c": None}]]}, "lines": []},
    ),
    "arguments of the names of keys": ('{"name": "x", "arguments": {}}', {"name": "x", "arguments": {}}),
    "unknown argument": ('{"colour": "red"}', {"colour": "red"}),
}
LOOSE_JSON: dict[str, tuple[str, dict[str, Any]]] = {
    "a line break in a text": ('{"new": "a\nb"}', {"new": "a\nb"}),
    "unknown escape": (r'{"old": "\d+"}', {"old": "\\d+"}),
    "escaped apostrophe": (r"""{"old": "it\'s"}""", {"old": "it's"}),
    "Python words": ('{"fuzzy": True, "limit": None}', {"fuzzy": True, "limit": None}),
    "single quotes": ("{'path': 'a.py', 'count': 5}", {"path": "a.py", "count": 5}),
    "trailing comma": ('{"path": "a.py",}', {"path": "a.py"}),
    "comment": ('{"path": "a.py" // here\n}', {"path": "a.py"}),
    "bare keys": ('{path: "a.py"}', {"path": "a.py"}),
    "leading plus": ('{"count": +5}', {"count": 5}),
    "leading zero": ('{"count": 007}', {"count": 7}),
    "a brace is missing": ('{"path": "a.py"', {"path": "a.py"}),
    "a brace too many": ('{"path": "a.py"}}', {"path": "a.py"}),
    "JSON in a text": ('"{\\"path\\": \\"a.py\\"}"', {"path": "a.py"}),
}
BROKEN_JSON = {
    "half a character": r'{"path": "\ud83c"}',
    "a comma is missing": '{"path": "a.py" "count": 5}',
    "unescaped quotes": '{"path": "say "hi" now"}',
    "NaN": '{"scale": NaN}',
    "too great a number": '{"scale": 1e999}',
    "a list": '["a.py", 5]',
    "a text": '"a.py"',
    "an ellipsis": '{"path": "a", ...}',
    "curly quotes": "{“path”: “a”}",
}
TAGGED: dict[str, tuple[str, str, Any]] = {
    "line breaks at the ends": ("new", "\ncode\n", "\ncode\n"),
    "quotes": ("new", '"a" \\n it\'s', '"a" \\n it\'s'),
    "entities": ("new", "<b>&amp;</b>", "<b>&amp;</b>"),
    "null as a text": ("new", "null", "null"),
    "spaces around an integer": ("count", " -3 ", -3),
    "plus": ("count", "+5", 5),
    "integer as a float": ("count", "5.0", 5),
    "integer in quotes": ("count", '"5"', 5),
    "no integer": ("count", "1,000", "1,000"),
    "exponent": ("scale", "1.5e-3", 0.0015),
    "no digit before the point": ("scale", "-.5", -0.5),
    "infinity": ("scale", "inf", "inf"),
    "True": ("fuzzy", "True", True),
    "FALSE": ("fuzzy", "FALSE", False),
    "yes": ("fuzzy", "yes", "yes"),
    "None": ("limit", "None", None),
    "a date": ("when", "2024-01-01", "2024-01-01"),
    "an integer or a text": ("when", "5", 5),
    "Python list": ("tags", "['a', 'it\\'s', None]", ["a", "it's", None]),
    "Python object": ("meta", "{'a': True, 'b': -1.5}", {"a": True, "b": -1.5}),
    "trailing comma": ("meta", '{"a": 1,}', {"a": 1}),
    "JSON over lines": ("lines", "[\n  1,\n  2\n]", [1, 2]),
    "$ref": ("size", '{"w": 1}', {"w": 1}),
    "enum": ("level", "2", 2),
    "no type": ("free", "5", "5"),
}


def read(text: str, *calls: Called) -> Written:
    return Written(text, calls)


def told(text: str, *calls: Called, ends: bool = True) -> Written:
    return Written(text, calls, Must.TOLD, ends)


def either(text: str, *calls: Called) -> Written:
    return Written(text, calls, Must.EITHER)


def answers(*texts: str) -> dict[str, Written]:
    return {f"answer {text!r}": Written(text, ()) for text in ("It is 4.", "", "{1, 2} and [x](y)", *texts)}


def with_json(before: str, after: str) -> dict[str, Written]:
    """Return the turns with one call of `edit` whose arguments are JSON between two texts."""
    good = {name: read(before + text + after, ("edit", given)) for name, (text, given) in JSON.items()}
    loose = {name: either(before + text + after, ("edit", given)) for name, (text, given) in LOOSE_JSON.items()}
    return {**good, **loose, **{name: told(before + text + after) for name, text in BROKEN_JSON.items()}}


def around_calls(
    one: str, other: str, *, thinks: tuple[str, str] = ("<think>\n", "\n</think>\n\n")
) -> Iterator[tuple[str, Written]]:
    """Yield what every family has. `one`, `other`: calls of `edit` and `now`."""
    opening, closing = thinks
    yield "two calls", read(one + other, EDIT, NOW)
    yield "three calls on lines", read(f"{one}\n{other}\n{one}", EDIT, NOW, EDIT)
    yield "text before", read(f"I look.\n\n{one}", EDIT)
    yield "thoughts", read(f"{opening}Hm.{closing}{one}", EDIT)
    yield "an example in thoughts", read(f"{opening}Maybe {other} so.{closing}{one}", EDIT)
    yield "a call in open thoughts", read(f"{opening}Hm.\n{one}", EDIT)
    yield "bare JSON", either(BARE, EDIT)
    yield "JSON in a code fence", either(f"I call it:\n```json\n{BARE}\n```", EDIT)
    yield "Claude's form", either('<invoke name="edit">\n<parameter name="path">a.py</parameter>\n</invoke>', EDIT)


def _hermes(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "edit", "arguments": {arguments}}}\n</tool_call>'


HERMES_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
QWEN3 = WrittenFamily(
    "hermes", "trl/qwen3", r"<\|im_start\|>assistant\n.*?<\|im_end\|>(?=\n)",
    {
        **with_json('<tool_call>\n{"name": "edit", "arguments": ', "}\n</tool_call>"),
        **dict(around_calls(HERMES, HERMES_NOW)),
        **answers('The file has {"name": "x", "arguments": 1}.'),
        "arguments first": read('<tool_call>{"arguments": {"path": "a.py"}, "name": "edit"}</tool_call>', EDIT),
        "more keys": read('<tool_call>{"name": "edit", "id": "x", "arguments": {"path": "a.py"}}</tool_call>', EDIT),
        "no arguments": read('<tool_call>{"name": "now"}</tool_call>', NOW),
        "arguments null": read('<tool_call>{"name": "now", "arguments": null}</tool_call>', NOW),
        "arguments beside the name": told('<tool_call>{"name": "edit", "path": "a.py"}</tool_call>'),
        "args": either('<tool_call>{"name": "edit", "args": {"path": "a.py"}}</tool_call>', EDIT),
        "name as key": either('<tool_call>{"edit": {"path": "a.py"}}</tool_call>', EDIT),
        "no name": told('<tool_call>{"arguments": {"path": "a"}}</tool_call>'),
        "two objects with a comma": either(_hermes('{"path": "a.py"}').replace("}}", '}},\n{"name": "now"}'), EDIT, NOW),
        "an empty call": told("<tool_call>\n</tool_call>"),
        "the closing tag is missing": read(HERMES.removesuffix("</tool_call>"), EDIT),
        "the closing tag is missing in the first": either(HERMES.removesuffix("</tool_call>") + HERMES_NOW, EDIT, NOW),
        "the closing tag is an opening one": either(HERMES.replace("</", "<"), EDIT),
        "the opening tag twice": either(f"<tool_call>\n{HERMES}", EDIT),
        "the opening tag is missing": either(HERMES.removeprefix("<tool_call>"), EDIT),
        "the opening tag of the second is missing": either(f"{HERMES}\n{HERMES_NOW[11:]}", EDIT, NOW),
        "spaced tags": either(HERMES.replace("call>", "call >"), EDIT),
        "tags of tools": either(HERMES.replace("tool_call", "tools"), EDIT),
        "Python in the tags": either("<tool_call>\nedit(path='a.py')\n</tool_call>", EDIT),
        "text in front of the JSON": either(HERMES.replace('{"name', 'So: {"name'), EDIT),
        "text behind the JSON": either(HERMES.replace("}}", "}}\nThat is it."), EDIT),
        "cut off in a text": told(HERMES[:50]),
        "cut off at a limit": told(HERMES[:50], ends=False),
        "the second is cut off": told(f"{HERMES}\n{HERMES_NOW[:25]}", EDIT),
        "the first is broken": told(f"{_hermes('{')}\n{HERMES_NOW}"),
    },
)  # fmt: skip


def _coder(*arguments: tuple[str, str], name: str = "edit") -> str:
    pairs = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function={name}>\n{pairs}</function>\n</tool_call>"


CODER, CODER_NOW = _coder(("path", "a.py")), _coder(name="now")
CODER_TWO = _coder(("path", "a.py"), ("count", "5"))
CALLS_AS_TEXT = f"x\n</parameter>\n{CODER_NOW} y"
QWEN3_CODER = WrittenFamily(
    "qwen3_coder", "llama/Qwen3-Coder", r"<\|im_start\|>assistant\n.*?<\|im_end\|>(?=\n)",
    {
        **{name: read(_coder((key, text)), ("edit", {key: value})) for name, (key, text, value) in TAGGED.items()},
        **dict(around_calls(CODER, CODER_NOW)),
        **answers("The tag </tool_call> ends it.", "Use <b>x</b> and </div>."),
        "CRLF": read(CODER.replace("\n", "\r\n"), EDIT),
        "indented": read(CODER.replace("\n<", "\n  <"), EDIT),
        "an empty text": read(CODER.replace("\na.py\n", ""), ("edit", {"path": ""})),
        "markup of calls in a value": read(_coder(("new", CALLS_AS_TEXT)), ("edit", {"new": CALLS_AS_TEXT})),
        "two in a group": read(CODER.removesuffix("\n</tool_call>") + CODER_NOW.removeprefix("<tool_call>"), EDIT, NOW),
        "</function> is missing": either(CODER.replace("</function>\n", ""), EDIT),
        "</parameter> is missing": read(CODER.replace("</parameter>\n", ""), EDIT),
        "<tool_call> is missing": read(CODER.removeprefix("<tool_call>\n"), EDIT),
        "</tool_call> is missing": read(CODER.removesuffix("\n</tool_call>"), EDIT),
        "the second tag is spelled in another way": told(CODER_TWO.replace("=count", ' name="count"')),
        "the second tag is not closed": told(CODER_TWO.replace("=count>", "=count")),
        "a second call's beginning is missing": told(CODER + CODER_NOW.removeprefix("<tool_call>\n<function=now>"), EDIT),
        "<function> is missing": either(CODER.replace("<function=edit>\n", ""), EDIT),
        "closed by its name": told(CODER.replace("</parameter>", "</path>")),
        "closing tags with names": either(CODER.replace("</parameter>", "</parameter=path>"), EDIT),
        "text between arguments": told(CODER_TWO.replace("<parameter=count", "and\n<parameter=count")),
        "text in front of arguments": told(CODER.replace("<parameter", "I write:\n<parameter")),
        "names as attributes": either(CODER.replace("=edit", ' name="edit"').replace("=path", ' name="path"'), EDIT),
        "names as attributes, no group": either(
            '<function name="edit">\n<parameter name="path">a.py</parameter>\n</function>', EDIT
        ),
        "names in quotes": either(CODER.replace("=edit", '="edit"').replace("=path", '="path"'), EDIT),
        "elements": either(CODER.replace("parameter=path", "path").replace("/parameter", "/path"), EDIT),
        "JSON in the function": either('<tool_call>\n<function=edit>\n{"path": "a.py"}\n</function>\n</tool_call>', EDIT),
        "Hermes": either(HERMES, EDIT),
        "no name": told(_coder(("path", "a"), name="")),
        "cut off in a value": told(CODER[:48]),
        "cut off in a tag": told(CODER[:34], ends=False),
        "the second is cut off": told(f"{CODER}\n{CODER[:20]}", EDIT),
    },
)  # fmt: skip


def _glm(*arguments: tuple[str, str], name: str = "edit") -> str:
    pairs = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments)
    return f"<tool_call>{name}\n{pairs}</tool_call>"


GLM_EDIT, GLM_NOW = _glm(("path", "a.py")), _glm(name="now")
GLM = WrittenFamily(
    "glm", "trl/glm4moe", r"<\|assistant\|>.*?(?=<\|user\|>|<\|observation\|>|$)",
    {
        **{name: read(_glm((key, text)), ("edit", {key: value})) for name, (key, text, value) in TAGGED.items()},
        **dict(around_calls(GLM_EDIT, GLM_NOW, thinks=("<think>", "</think>\n"))),
        **answers(),
        "indented": read(GLM_EDIT.replace("\n<", "\n  <"), EDIT),
        "CRLF": read(GLM_EDIT.replace("\n", "\r\n"), EDIT),
        "<tool_call> is missing": either(GLM_EDIT.removeprefix("<tool_call>"), EDIT),
        "<tool_call> of the second is missing": either(GLM_NOW + GLM_EDIT.removeprefix("<tool_call>"), NOW, EDIT),
        "</tool_call> is missing": either(GLM_EDIT.removesuffix("</tool_call>"), EDIT),
        "</arg_value> is missing": either(GLM_EDIT.replace("</arg_value>", ""), EDIT),
        "</arg_key> is missing": either(GLM_EDIT.replace("</arg_key>", ""), EDIT),
        "<arg_value> is missing": either(GLM_EDIT.replace("<arg_value>", ""), EDIT),
        "<arg_key> of the second is missing": told(_glm(("path", "a.py"), ("count", "5")).replace("<arg_key>count", "count")),
        "<arg_value> of the second is missing": told(_glm(("path", "a.py"), ("count", "5")).replace("<arg_value>5", "5")),
        "text between arguments": told(_glm(("path", "a.py"), ("count", "5")).replace("<arg_key>count", "and\n<arg_key>count")),
        "no name": told(_glm(("path", "a"), name="")),
        "JSON behind the name": either('<tool_call>edit\n{"path": "a.py"}\n</tool_call>', EDIT),
        "Hermes": either(HERMES, EDIT),
        "cut off in a value": told(GLM_EDIT[:55]),
        "cut off in a key": told(GLM_EDIT[:27], ends=False),
        "the second is cut off": told(f"{GLM_EDIT}\n{GLM_EDIT[:55]}", EDIT),
    },
)  # fmt: skip

KIMI_IDS = {
    "a great index": "functions.edit:17",
    "no index": "functions.edit",
    "no prefix": "edit:0",
    "a name alone": "edit",
    "spaces": " functions.edit:0 ",
}


def _kimi(arguments: str, id: str = "functions.edit:0") -> str:
    return f"<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def _section(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


KIMI_EDIT, KIMI_NOW = _kimi('{"path": "a.py"}'), _kimi("{}", "functions.now:1")
KIMI = WrittenFamily(
    "kimi_k2", "llama/moonshotai-Kimi-K2", r"<\|im_assistant\|>assistant<\|im_middle\|>.*?<\|im_end\|>",
    {
        **with_json(_section(KIMI_EDIT).partition("{")[0], _section(KIMI_EDIT).partition("}")[2]),
        **dict(around_calls(_section(KIMI_EDIT), _section(KIMI_NOW), thinks=("<think>", "</think>"))),
        **answers(),
        **{name: read(_section(_kimi('{"path": "a.py"}', id)), EDIT) for name, id in KIMI_IDS.items()},
        "two in a section": read(_section(KIMI_EDIT, "\n", KIMI_NOW), EDIT, NOW),
        "no section": read(KIMI_EDIT + KIMI_NOW, EDIT, NOW),
        "no id": told(_section(_kimi("{}", ""))),
        "an index alone": told(_section(_kimi("{}", "functions.:0"))),
        "no arguments": either(_section(_kimi("", "functions.now:0")), NOW),
        "the end is missing": either(_section(KIMI_EDIT.removesuffix("<|tool_call_end|>")), EDIT),
        "the end of the first is missing": either(_section(KIMI_EDIT.removesuffix("<|tool_call_end|>"), KIMI_NOW), EDIT, NOW),
        "the beginning is missing": either(_section(KIMI_EDIT.removeprefix("<|tool_call_begin|>")), EDIT),
        "the beginning of the second is missing": either(
            _section(KIMI_EDIT, KIMI_NOW.removeprefix("<|tool_call_begin|>")), EDIT, NOW
        ),
        "the mark of arguments is missing": either(_section(KIMI_EDIT.replace("<|tool_call_argument_begin|>", "")), EDIT),
        "Hermes": either(HERMES, EDIT),
        "Hermes in the section": either(_section(BARE), EDIT),
        "without its tokens": either('functions.edit:0{"path": "a.py"}', EDIT),
        "text in the section": told(_section("I call edit.")),
        "text behind arguments": told(_section(_kimi('{"path": "a.py"} and so'))),
        "cut off in the id": told("<|tool_calls_section_begin|><|tool_call_begin|>functions.ed"),
        "cut off in arguments": told(_section(KIMI_EDIT)[:100], ends=False),
        "the second is cut off": told(f"<|tool_calls_section_begin|>{KIMI_EDIT}{KIMI_NOW[:25]}", EDIT),
        "the first is broken": told(_section(_kimi('{"path": '), KIMI_NOW)),
    },
)  # fmt: skip

HARMONY_HEAD = "<|channel|>commentary to=functions.edit <|constrain|>json<|message|>"
HARMONY_EDIT, NEXT = HARMONY_HEAD + '{"path": "a.py"}', "<|end|><|start|>assistant"
HARMONY_HEADS = {
    "recipient in the role": " to=functions.edit<|channel|>commentary <|constrain|>json<|message|>",
    "type without its mark": " to=functions.edit<|channel|>commentary json<|message|>",
    "no type": "<|channel|>commentary to=functions.edit<|message|>",
    "no space": "<|channel|>commentary to=functions.edit<|constrain|>json<|message|>",
    "in the analysis": "<|channel|>analysis to=functions.edit code<|message|>",
    "no channel": " to=functions.edit<|message|>",
    "behind thoughts": f"<|channel|>analysis<|message|>Hm.{NEXT}{HARMONY_HEAD}",
    "behind a preamble": f"<|channel|>commentary<|message|>I look.{NEXT}{HARMONY_HEAD}",
    "behind thoughts that are not ended": f"<|channel|>analysis<|message|>Hm.{HARMONY_HEAD}",
    "behind thoughts without an end": f"<|channel|>analysis<|message|>Hm.<|start|>assistant{HARMONY_HEAD}",
}
LOOSE_HEADS = {
    "no prefix": "<|channel|>commentary to=edit <|constrain|>json<|message|>",
    "a space in the recipient": "<|channel|>commentary to= functions.edit <|constrain|>json<|message|>",
    "a colon in the recipient": "<|channel|>commentary to:functions.edit json<|message|>",
    "recipient behind the type": "<|channel|>commentary <|constrain|>json to=functions.edit<|message|>",
    "recipient in quotes": '<|channel|>commentary to="functions.edit" <|constrain|>json<|message|>',
    "no recipient": "<|channel|>commentary <|constrain|>json<|message|>",
    "no mark of the message": "<|channel|>commentary to=functions.edit <|constrain|>json",
    "inside the thoughts": "<|channel|>analysis<|message|>Hm. to=functions.edit<|message|>",
}
GPT_OSS = WrittenFamily(
    "harmony", "trl/gptoss",
    r"(?:<\|start\|>assistant(?!$)(?:(?!<\|start\|>(?:functions|user|system|developer)).)*?(?:<\|end\|>|<\|call\|>|<\|return\|>)"
    r"(?=$|<\|start\|>))+",
    {
        **with_json(HARMONY_HEAD, ""),
        **{name: read(head + '{"path": "a.py"}', EDIT) for name, head in HARMONY_HEADS.items()},
        **{name: either(head + '{"path": "a.py"}', EDIT) for name, head in LOOSE_HEADS.items()},
        **answers("<|channel|>final<|message|>It is 4.", "<|channel|>final<|message|>I use to=functions.edit."),
        "JSON as the answer": read('<|channel|>final <|constrain|>json<|message|>{"a": 1}'),
        "a name in place of a recipient": told(f"<|channel|>commentary <|constrain|>json<|message|>{BARE}"),
        "Hermes": either(f"<|channel|>final<|message|>{HERMES}", EDIT),
        "bare JSON": either(BARE, EDIT),
        "text in place of arguments": told(HARMONY_HEAD + "a.py"),
        "text behind arguments": told(HARMONY_EDIT + " and so"),
        "cut off in the header": told(HARMONY_HEAD[:35], ends=False),
        "cut off in arguments": told(HARMONY_EDIT[:-3], ends=False),
    },
    "<|call|>",
)  # fmt: skip


def _lfm(text: str) -> str:
    return f"<|tool_call_start|>[{text}]<|tool_call_end|>"


PYTHON: dict[str, tuple[str, dict[str, Any]]] = {
    "escapes": (r"""new='it\'s\n\t\\ \u6f22 \x41', old="say \"hi\"" """, {"new": "it's\n\t\\ 漢 A", "old": 'say "hi"'}),
    "triple quotes": ("new='''a\n'b' \"c\"\n'''", {"new": "a\n'b' \"c\"\n"}),
    "raw": (r"old=r'\d+'", {"old": r"\d+"}),
    "brackets in a text": ("new=')] , count=1', old='[now()]'", {"new": ")] , count=1", "old": "[now()]"}),
    "numbers": ("count=-1_000, scale=1.5e-3, free=-.5", {"count": -1000, "scale": 0.0015, "free": -0.5}),
    "words": ("fuzzy=False, limit=None, free=[true, null]", {"fuzzy": False, "limit": None, "free": [True, None]}),
    "nested": ("meta={'a': [1, {'b': None}]}, lines=(1, 2)", {"meta": {"a": [1, {"b": None}]}, "lines": [1, 2]}),
    "lines": ("\n  path='a.py',\n  count=5,\n", {"path": "a.py", "count": 5}),
    "spaces": ("path = 'a.py' , count = 5", {"path": "a.py", "count": 5}),
}
LOOSE_PYTHON: dict[str, tuple[str, dict[str, Any]]] = {
    "a line break in a text": ("new='a\nb'", {"new": "a\nb"}),
    "quotes in quotes": ("new='it's'", {"new": "it's"}),
    "a comma is missing": ("path='a.py' count=5", {"path": "a.py", "count": 5}),
    "JSON's colon": ("path: 'a.py'", {"path": "a.py"}),
    "a mapping": ("**{'path': 'a.py'}", {"path": "a.py"}),
    "hexadecimal": ("count=0x10", {"count": 16}),
    "leading zero": ("count=007", {"count": 7}),
    "comment": ("path='a.py' # here\n", {"path": "a.py"}),
}
BROKEN_PYTHON = {
    "no name": "'a.py'",
    "no quotes": "path=a.py",
    "an expression": "count=2*3",
    "a comprehension": "lines=[i for i in x]",
    "a call as a value": "path=now()",
    "infinity": "scale=1e999",
    "half a character": r"path='\ud800'",
    "a set": "meta={'a', 1}",
    "no closing quote": "path='a.py",
    "no closing bracket": "lines=[1, 2",
    "a date": "when=2024-01-01",
}
LFM_EDIT, LFM_NOW = _lfm("edit(path='a.py')"), _lfm("now()")
LFM2 = WrittenFamily(
    "lfm2", "trl/lfm2_v2", r"<\|im_start\|>assistant\n.*?<\|im_end\|>(?=\n)",
    {
        **{name: read(_lfm(f"edit({text})"), ("edit", given)) for name, (text, given) in PYTHON.items()},
        **{name: either(_lfm(f"edit({text})"), ("edit", given)) for name, (text, given) in LOOSE_PYTHON.items()},
        **{name: told(_lfm(f"edit({text})")) for name, text in BROKEN_PYTHON.items()},
        **dict(around_calls(LFM_EDIT, LFM_NOW, thinks=("<think>", "</think>"))),
        **answers("See [the list](x) and f(x=1).", "[1, 2]"),
        "two in a list": read(_lfm("\n edit(path='a.py'),\n now()\n"), EDIT, NOW),
        "a semicolon between": either(_lfm("edit(path='a.py'); now()"), EDIT, NOW),
        "no brackets": read("<|tool_call_start|>edit(path='a.py')\nnow()<|tool_call_end|>", EDIT, NOW),
        "JSON": read(f"<|tool_call_start|>[{BARE}]<|tool_call_end|>", EDIT),
        "JSON without arguments": told('<|tool_call_start|>[{"name": "edit", "path": "a.py"}]<|tool_call_end|>'),
        "the end is missing": read(LFM_EDIT.removesuffix("<|tool_call_end|>"), EDIT),
        "the start is missing": either(LFM_EDIT.removeprefix("<|tool_call_start|>"), EDIT),
        "without its tokens": either("[edit(path='a.py')]", EDIT),
        "Hermes": either(HERMES, EDIT),
        "a parenthesis is missing": told(_lfm("edit(path='a.py'")),
        "a parenthesis too many": either(_lfm("edit(path='a.py'))"), EDIT),
        "an assignment": told(_lfm("x = edit(path='a.py')")),
        "text in the list": told("<|tool_call_start|>I call edit.<|tool_call_end|>"),
        "cut off in a text": told(LFM_EDIT[:34]),
        "cut off in the name": told(LFM_EDIT[:22], ends=False),
        "the second is cut off": told(LFM_EDIT.removesuffix("]<|tool_call_end|>") + ", edit(pa", EDIT),
    },
)  # fmt: skip


def _gemma(arguments: str, name: str = "edit") -> str:
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"


Q = '<|"|>'
GEMMA_EDIT, GEMMA_NOW = _gemma(f"path:{Q}a.py{Q}"), _gemma("", "now")
GEMMA_VALUES: dict[str, tuple[str, dict[str, Any]]] = {
    "marks of the form in a text": (f"new:{Q}}} , ] count:1 {{a:1}}{Q}", {"new": "} , ] count:1 {a:1}"}),
    "numbers": ("count:-3,scale:1.5e-3,free:1E5", {"count": -3, "scale": 0.0015, "free": 100000.0}),
    "words": ("fuzzy:False,limit:null", {"fuzzy": False, "limit": None}),
    "nested": (
        f"meta:{{a:{{b:[1,null]}}}},tags:[{Q}a{Q},{Q}b, c{Q}]",
        {"meta": {"a": {"b": [1, None]}}, "tags": ["a", "b, c"]},
    ),
    "spaces": (f"\n path : {Q}a{Q} , count : 5 \n", {"path": "a", "count": 5}),
    "quoted keys": (f'"path":"a.py",{Q}count{Q}:5', {"path": "a.py", "count": 5}),
}
GEMMA_BROKEN = {
    "no quotes": "path:a.py", "a date": "when:2024-01-01", "a number with a unit": "count:5 lines", "leading zero": "count:007",
    "Python's number": "count:1_000", "NaN": "scale:NaN", "an equals sign": f"path={Q}a{Q}", "no closing bracket": "lines:[1,2",
    "no value": "count:", "a comma is missing": f"path:{Q}a{Q} count:5",
}  # fmt: skip
GEMMA4 = WrittenFamily(
    "gemma4", "trl/gemma4_v5",
    r"(?:<\|turn>model\n|(?<=<tool_response\|>)(?!<\|tool_response>|<turn\|>)).*?(?=<\|tool_response>|<turn\|>|$)",
    {
        **{name: read(_gemma(text), ("edit", given)) for name, (text, given) in GEMMA_VALUES.items()},
        **{name: told(_gemma(text)) for name, text in GEMMA_BROKEN.items()},
        **{
            name: one
            for name, one in around_calls(GEMMA_EDIT, GEMMA_NOW, thinks=("<|channel>thought\n", "\n<channel|>"))
        },
        **answers(),
        "the end is missing": read(GEMMA_EDIT.removesuffix("<tool_call|>"), EDIT),
        "the start is missing": either(GEMMA_EDIT.removeprefix("<|tool_call>"), EDIT),
        "the start of the second is missing": either(GEMMA_EDIT + GEMMA_NOW.removeprefix("<|tool_call>"), EDIT, NOW),
        "without its tokens": either(f"call:edit{{path:{Q}a.py{Q}}}", EDIT),
        "a brace is missing": told(GEMMA_EDIT.replace("}", "")),
        "a brace too many": either(GEMMA_EDIT.replace("}", "}}"), EDIT),
        "parentheses": either("<|tool_call>call:now()<tool_call|>", NOW),
        "JSON in the tokens": either(f"<|tool_call>{BARE}<tool_call|>", EDIT),
        "Gemma 3's code": either("```tool_code\nedit(path='a.py')\n```", EDIT),
        "cut off in a text": told(GEMMA_EDIT[:32]),
        "cut off in the name": told(GEMMA_EDIT[:18], ends=False),
        "the second is cut off": told(GEMMA_EDIT + GEMMA_EDIT[:32], EDIT),
    },
    "<|tool_response>",
)  # fmt: skip


def _dsml(*arguments: tuple[str, str, str], name: str = "edit") -> str:
    pairs = "".join(f'<｜DSML｜parameter name="{k}" string="{s}">{v}</｜DSML｜parameter>\n' for k, s, v in arguments)
    return f'<｜DSML｜invoke name="{name}">\n{pairs}</｜DSML｜invoke>\n'


def _dsml_group(*calls: str) -> str:
    return f"<｜DSML｜function_calls>\n{''.join(calls)}</｜DSML｜function_calls>"


DSML_EDIT, DSML_NOW = _dsml(("path", "true", "a.py")), _dsml(name="now")
DEEPSEEK = WrittenFamily(
    "deepseek_dsml", "llama/deepseek-ai-DeepSeek-V3.2",
    r"<｜Assistant｜>.*?<｜end▁of▁sentence｜>|(?:(?<=</think>)|(?<=</result>))(?!\n\n<function_results>|$).*?<｜end▁of▁sentence｜>",
    {
        **{
            name: read(_dsml_group(_dsml((key, "true" if key == "new" else "false", text))), ("edit", {key: value}))
            for name, (key, text, value) in TAGGED.items()
            if name not in ("no type", "integer as a float", "integer in quotes")  # `string="false"` says that it is JSON
        },
        **dict(around_calls(_dsml_group(DSML_EDIT), _dsml_group(DSML_NOW), thinks=("<think>", "</think>"))),
        **answers(),
        "two in a group": read(_dsml_group(DSML_EDIT, DSML_NOW), EDIT, NOW),
        "V4's group": read(_dsml_group(DSML_EDIT).replace("function_calls", "tool_calls"), EDIT),
        "no group": read(DSML_EDIT, EDIT),
        "no attribute": read(_dsml_group(_dsml(("count", "", "5")).replace(' string=""', "")), ("edit", {"count": 5})),
        "the end of the call is missing": either(_dsml_group(DSML_EDIT.replace("</｜DSML｜invoke>\n", "")), EDIT),
        "the end of a value is missing": either(_dsml_group(DSML_EDIT.replace("</｜DSML｜parameter>", "")), EDIT),
        "the beginning is missing": either(DSML_EDIT.removeprefix('<｜DSML｜invoke name="edit">\n'), EDIT),
        "text between arguments": told(
            _dsml_group(_dsml(("path", "true", "a.py"), ("count", "false", "5")).replace("er>\n<", "er>\nand\n<"))
        ),
        "no bars": either(_dsml_group(DSML_EDIT).replace("｜DSML｜", ""), EDIT),
        "Hermes": either(HERMES, EDIT),
        "cut off in a value": told(_dsml_group(DSML_EDIT)[:102]),
        "cut off in a tag": told(_dsml_group(DSML_EDIT)[:40], ends=False),
        "the second is cut off in its tag": told(f"<｜DSML｜function_calls>\n{DSML_EDIT}{DSML_NOW[:12]}", EDIT),
        "the second is cut off in a value": told(f"<｜DSML｜function_calls>\n{DSML_EDIT}{DSML_EDIT[:78]}", EDIT),
    },
)  # fmt: skip

FAMILIES = {
    "Qwen3": QWEN3, "Qwen3-Coder": QWEN3_CODER, "GLM 4.5": GLM, "Kimi K2": KIMI, "gpt-oss": GPT_OSS, "LFM2": LFM2,
    "Gemma 4": GEMMA4, "DeepSeek V3.2": DEEPSEEK,
}  # fmt: skip
