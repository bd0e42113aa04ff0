"""Spellings of single families, and values that are not what their tool declares."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.tokens.tool_calls import ParsedTurn, ToolCall, parsers_that_read, plain_turn
from rollyard.tokens.tool_calls.parser_choice import BUILT_IN
from tests.tokens.tool_calls.spelled_values import TOOLS

GET = ToolCall("get", {"path": "a"})
STOP = ToolCall("stop", {})


def read(parser: str, text: str, tools: Any = TOOLS) -> ParsedTurn:
    turn: ParsedTurn = BUILT_IN[parser].make(tools).parse(text)
    return turn


def schema(value: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"function": {"name": "get", "parameters": {"properties": {"v": value}, **more}}}]


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, "TRUE", True),
        ({"type": "boolean"}, '"False"', False),
        ({"type": "boolean"}, "0", False),
        ({"type": "boolean"}, "perhaps", "perhaps"),
        ({"type": "string"}, "True", "True"),
        ({"type": "string"}, "007", "007"),
        ({"type": "string"}, "[1]", "[1]"),
        ({"type": "string"}, "null", "null"),
        ({}, "5", "5"),
        (None, "5", "5"),
        (True, "5", "5"),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, " 5 ", 5),
        ({"type": "integer"}, "-5", -5),
        ({"type": "integer"}, "007", 7),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, "1e3", 1000),
        ({"type": "integer"}, "5.5", 5.5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "integer"}, "12345678901234567890", 12345678901234567890),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"type": ["integer", "string"]}, "5", 5),
        ({"type": ["integer", "string"]}, "007", "007"),
        ({"type": "string", "nullable": True}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"oneOf": [{"type": "array"}, {"type": "string"}]}, "[1]", [1]),
        ({"oneOf": [{"type": "array"}, {"type": "string"}]}, "{1}", "{1}"),
        ({"allOf": [{"$ref": "#/$defs/A"}]}, "5", 5),
        ({"$ref": "#/$defs/A"}, "5", 5),
        ({"$ref": "#/$defs/Loop"}, "5", "5"),
        ({"$ref": "#/nowhere"}, "5", "5"),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"enum": [True, None]}, "None", None),
        ({"const": 3}, "3", 3),
        ({"type": "array"}, "['a', True, None]", ["a", True, None]),
        ({"type": "array"}, '["a", true]', ["a", True]),
        ({"type": "array"}, "a, b", "a, b"),
        ({"type": "object"}, "{'k': [1, {'j': False}]}", {"k": [1, {"j": False}]}),
        ({"type": "object"}, "{}", {}),
        ({"type": "object"}, "[1]", [1]),
        ({"properties": {"k": {}}}, '{"k": 1}', {"k": 1}),
        ({"type": "int"}, "5", 5),
    ],
)
def test_a_value_is_typed_by_its_schema(declared: Any, text: str, value: Any) -> None:
    defs = {"A": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}}
    call = f"<tool_call>\n<function=get>\n<parameter=v>\n{text}\n</parameter>\n</function>\n</tool_call>"
    turn = read("qwen3_coder", call, schema(declared, **{"$defs": defs}))
    assert turn.calls == (ToolCall("get", {"v": value}),)
    assert type(turn.calls[0].arguments["v"]) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        # tags that are missing, doubled or moved
        (
            "qwen3_coder",
            "<function=get>\n<parameter=path>\na\n</parameter>\n</function>",
            "",
            (GET,),
        ),
        (
            "qwen3_coder",
            "<tool_call><function=get>\n<parameter=path>\na\n<parameter=n>\n5\n</parameter></function></tool_call>",
            "",
            (ToolCall("get", {"path": "a", "n": 5}),),
        ),
        (
            "qwen3_coder",
            "<tool_call><function=get>\n<parameter=path>\na\n</parameter>\n<parameter=n>\n5\n</function></tool_call>",
            "",
            (ToolCall("get", {"path": "a", "n": 5}),),
        ),
        (
            "qwen3_coder",
            "<tool_call><function=get><parameter=path>b</parameter><parameter=path>a</parameter></function></tool_call>",
            "",
            (GET,),
        ),
        (
            "qwen3_coder",
            "<tool_call><function= get ><parameter= path >a</parameter></function></tool_call>",
            "",
            (GET,),
        ),
        ("qwen3_coder", "<tool_call><function=get><parameter=path>a</parameter></function>", "", (GET,)),
        (
            "qwen3_coder",
            "<tool_call><function=get><parameter=path>a</parameter></function><function=stop></function></tool_call>",
            "",
            (GET, STOP),
        ),
        (
            "glm",
            "<tool_call>get<arg_key>path</arg_key><arg_value>a<arg_key>n</arg_key><arg_value>5</arg_value></tool_call>",
            "",
            (ToolCall("get", {"path": "a", "n": 5}),),
        ),
        ("minimax_m2", '<invoke name="get"><parameter name="path">a</parameter></invoke>', "", (GET,)),
        ("minimax_m2", "<invoke name=get><parameter name=path>a</parameter></invoke>", "", (GET,)),
        (
            "deepseek_dsml",
            '<｜DSML｜invoke name="get"><｜DSML｜parameter name="n" string="false">x</｜DSML｜parameter></｜DSML｜invoke>',
            "",
            (ToolCall("get", {"n": "x"}),),
        ),
        # JSON
        ("hermes", '<tool_call>{"name": "get", "parameters": {"path": "a"}}</tool_call>', "", (GET,)),
        ("hermes", '<tool_call>{"name": "get", "arguments": {"path": "a"}}', "", (GET,)),
        ("hermes", '<tool_call>\n```json\n{"name": "get", "arguments": {"path": "a"}}\n```\n</tool_call>', "", (GET,)),
        (
            "hermes",
            '<tool_call>{"name": "get", "arguments": {"path": "a"}}\n{"name": "stop"}</tool_call>',
            "",
            (GET, STOP),
        ),
        (
            "hermes",
            '<tool_call>{"type": "function", "function": {"name": "get", "arguments": {"path": "a"}}}</tool_call>',
            "",
            (GET,),
        ),
        ("tool_calls", "Nothing to do.\n<tool_calls>[]</tool_calls>", "Nothing to do.", ()),
        (
            "llama3_json",
            'I call it:\n{"name": "get", "parameters": {"path": "a"}}\nSo.',
            "I call it:\n\nSo.",
            (GET,),
        ),
        (
            "llama3_json",
            'I call it:\n```json\n{"name": "get", "parameters": {"path": "a"}}\n```',
            "I call it:",
            (GET,),
        ),
        ("llama3_json", '{"answer": 4, "name": "Bo"}', '{"answer": 4, "name": "Bo"}', ()),
        ("llama3_json", "It is {12} or [3].\n```\nx = {}\n```", "It is {12} or [3].\n```\nx = {}\n```", ()),
        ("llama3_json", '<|python_tag|>get.call(path="a")', "", (GET,)),
        (
            "llama3_json",
            "<|python_tag|>import os\nos.call(1)",
            "",
            (ToolCall("ipython", {"code": "import os\nos.call(1)"}),),
        ),
        ("command_r", "Plan: I look.\nAction: nothing", "Plan: I look.\nAction: nothing", ()),
        (
            "internlm",
            '<|action_start|><|plugin|>\n{"name": "get", "parameters": {"path": "a"}}<|action_end|>',
            "",
            (GET,),
        ),
        # Python
        ("pythonic", "See [the list](http://a.b) and [x(1)].", "See [the list](http://a.b) and [x(1)].", ()),
        ("pythonic", "[get(path='''a''')]", "", (GET,)),
        (
            "pythonic",
            "[get(path='a', flag=true, maybe=null)]",
            "",
            (ToolCall("get", {"path": "a", "flag": True, "maybe": None}),),
        ),
        ("pythonic", "[get(rows=[(1, 2), [3]])]", "", (ToolCall("get", {"rows": [[1, 2], [3]]}),)),
        ("pythonic", "[get(x=-1.5, n=+2)]", "", (ToolCall("get", {"x": -1.5, "n": 2}),)),
        ("lfm2", "<|tool_call_start|>get(path='a')<|tool_call_end|>", "", (GET,)),
        # special tokens
        (
            "gemma4",
            '<|tool_call>call:get{"path": "a", n: 5}<tool_call|>',
            "",
            (ToolCall("get", {"path": "a", "n": 5}),),
        ),
        ("gemma4", "<|tool_call>call:get{maybe:None}<tool_call|>", "", (ToolCall("get", {"maybe": None}),)),
        ("functiongemma", "<start_function_call>call:get{n:5}<end_function_call>", "", (ToolCall("get", {"n": 5}),)),
        # marks around values, and calls without marks
        (
            "minicpm5",
            '<function name="get"><param name="path"><![CDATA[</param> a\n]]></param></function>',
            "",
            (ToolCall("get", {"path": "</param> a\n"}),),
        ),
        ("minicpm5", '<function name="get"><param name="path">\n<![CDATA[a]]>\n</param></function>', "", (GET,)),
        ("phi4_mini", '{"name": "get", "arguments": {"path": "a"}}', "", (GET,)),
        (
            "phi4_mini",
            '{"name": "get", "arguments": {"path": "a"}},\n{"name": "stop", "arguments": {}}',
            "",
            (GET, STOP),
        ),
        (
            "apriel",
            'I look.\n[BEGIN FINAL RESPONSE]\nSo.\n<tool_calls>[{"name": "get", "arguments": {"path": "a"}}]</tool_calls>',
            "So.",
            (GET,),
        ),
        (
            "apriel",
            "Here are my reasoning steps:\n2 + 2\n[BEGIN FINAL RESPONSE]\n4\n[END FINAL RESPONSE]",
            "4",
            (),
        ),
        ("gemma4", "<|turn>model\nIt is 4.", "It is 4.", ()),
        ("phi4_mini", '{"city": "Quito"}', '{"city": "Quito"}', ()),
        ("functionary_v3.2", ">>>", "", ()),
        ("functionary_v3.2", ">>>all\nThat is all\nfolks", "That is all\nfolks", ()),
        ("cohere", "<|START_RESPONSE|>It is 4.<|END_RESPONSE|>", "It is 4.", ()),
        # Harmony
        ("harmony", '<|channel|>analysis to=functions.get<|message|>{"path": "a"}<|call|>', "", (GET,)),
        ("harmony", '<|channel|>commentary to=functions.get json<|message|>{"path": "a"}', "", (GET,)),
        ("harmony", '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"path": "a"}', "", (GET,)),
        ("harmony", ' to=functions.get<|channel|>analysis<|message|>{"path": "a"}<|call|>', "", (GET,)),
        ("harmony", "<|channel|>commentary to=functions.stop<|message|><|call|>", "", (STOP,)),
        (
            "harmony",
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.stop"
            "<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=functions.get<|message|>"
            '{"path": "a"}<|call|>',
            "I look.",
            (STOP, GET),
        ),
        ("harmony", "<|channel|>final<|message|>I use to=functions.get.<|return|>", "I use to=functions.get.", ()),
    ],
)
def test_odd_spellings_are_read(name: str, text: str, content: str, calls: tuple[ToolCall, ...]) -> None:
    turn = read(name, text)
    assert (turn.content, turn.calls, turn.error) == (content, calls, None)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("hermes", "I use the <tool_call> tag.", "closing tag </tool_call> is missing"),
        ("hermes", '<tool_call>{"name": "get", "arguments": {"path": "\\ud83c"}}</tool_call>', "lone surrogate"),
        ("qwen3_coder", "<tool_call>\n<function=get>\n<parameter=path>\na", "closing tag </function> is missing"),
        ("qwen3_coder", "<tool_call><function=get>a</function></tool_call>", "this is no argument: 'a"),
        ("qwen3_coder", "<function=get><parameter=path>a\ud800</parameter></function>", "lone surrogate"),
        ("kimi_k2", "<|tool_call_begin|>functions.get:0{}<|tool_call_end|>", "<|tool_call_argument_begin|> is missing"),
        ("pythonic", "[get('a')]", "needs its name"),
        ("pythonic", "[get(path=a)]", "a text needs quotes"),
        ("olmo3", "<function_calls>\nget(path='a'", ") is missing at the end"),
        ("phi4_mini", '{"name": "get", "arguments": {"path": "a}', "Unterminated string"),
        ("gemma4", "<|tool_call>call:get{path:a b}<tool_call|>", "a text stands between"),
        ("apertus", '<|tools_prefix|>[{"name": "get", "arguments": {}}]<|tools_suffix|>', "as its only key"),
        ("llama3_json", '{"name": "get", "parameters": {"path": "a}', "Unterminated string"),
        ("llama3_json", 'So: {"name": "get", "parameters": {"path": "a}', "Unterminated string"),
        ("harmony", "<|channel|>commentary to=functions.get<|message|>{} and<|call|>", "something else"),
        ("minimax_m3", ']<]minimax[>[<invoke name="get">x]<]minimax[>[</invoke>', "another element is missing"),
        # arguments that would be lost
        (
            "hermes",
            '<tool_call>{"name": "get", "path": "a"}</tool_call>',
            "`arguments` is missing; the object has path",
        ),
        ("gemma4", "<|tool_call>call:get{n:5 lines}<tool_call|>", "'5 lines' is no value"),
        ("gemma4", "<|tool_call>call:get{n:2024-01-01}<tool_call|>", "'2024-01-01' is no value"),
        (
            "qwen3_coder",
            "<function=get>\n<parameter=path>\na\n</parameter>\nand\n<parameter=n>\n5\n</parameter>\n</function>",
            "this is no argument: 'and",
        ),
        (
            "qwen3_coder",
            '<function=get>\n<parameter=path>\na\n</parameter>\n<parameter name="n">\n5\n</parameter>\n</function>',
            "this is no argument: '<parameter name=",
        ),
        (
            "qwen3_coder",
            "<function=get>\n<parameter=path>\na\n</path>\n</function>",
            "</path> is not the closing tag of path",
        ),
        (
            "glm",
            "<tool_call>get<arg_key>path</arg_key><arg_value>a</arg_value>n</arg_key><arg_value>5</arg_value></tool_call>",
            "this is no argument: 'n</arg_key>",
        ),
        ("hermes", "<tool_call>[]</tool_call>", "the list has no call"),
        # the beginning of the call is missing
        ("hermes", '{"name": "get", "arguments": {"path": "a"}}\n</tool_call>', "the beginning of the call is missing"),
        (
            "glm",
            "get<arg_key>path</arg_key><arg_value>a</arg_value></tool_call>",
            "the beginning of the call is missing",
        ),
        ("gemma4", '<|turn>call:get{path:<|"|>a<|"|>}', "the beginning of the call is missing"),
        ("lfm2", "[get(path='a')]<|tool_call_end|>", "the beginning of the call is missing"),
        ("mistral", 'get[ARGS]{"path": "a"}', "the beginning of the call is missing"),
        ("deepseek", "<｜tool▁sep｜>get\n```json\n{}\n```<｜tool▁call▁end｜>", "the beginning of the call is missing"),
        # the form of another family
        ("hermes", '{"name": "get", "arguments": {"path": "a"}}', "get is not in the form of this model"),
        ("kimi_k2", '<tool_call>{"name": "get", "arguments": {}}</tool_call>', "get is not in the form of this model"),
        ("qwen3_coder", '<invoke name="get">\n</invoke>', "get is not in the form of this model"),
        ("hermes", "<tool_calls><function=get></function></tool_calls>", "get is not in the form of this model"),
        ("deepseek_dsml", '<|DSML|invoke name="get">\n</|DSML|invoke>', "get is not in the form of this model"),
        (
            "deepseek_dsml",
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{"path": "a"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            "get is not in the form of this model",
        ),
        ("deepseek", '<｜DSML｜invoke name="get">\n</｜DSML｜invoke>', "get is not in the form of this model"),
        ("lfm2", "[get(path='a')]", "get is not in the form of this model"),
        ("mistral", "```python\nget(path='a')\n```", "get is not in the form of this model"),
        ("harmony", '```json\n{"name": "get", "arguments": {}}\n```', "get is not in the form of this model"),
        (
            "harmony",
            '<|channel|>commentary <|constrain|>json<|message|>{"path": "a"}',
            "recipient to=functions.NAME is missing",
        ),
        ("harmony", "<|channel|>commentary to= functions.get<|message|>{}", "recipient to=functions.NAME is missing"),
        ("harmony", "<|channel|>analysis<|message|>Hm. to=functions.get<|message|>{}", "stands inside a message"),
    ],
)
def test_a_broken_call_says_what_is_broken(name: str, text: str, error: str) -> None:
    turn = read(name, text)
    assert turn.calls == ()
    assert turn.error is not None
    assert error in turn.error
    assert turn.content == text.strip()


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm", "kimi_k2", "harmony", "lfm2", "gemma4", "mistral"])
def test_an_answer_that_mentions_a_tool_is_an_answer(name: str) -> None:
    for text in (
        "I could get(path='a') now.",
        'The tool is {"name": "get", "description": "", "parameters": {}}.',
        'It wrote {"name": "get", "size": 3} and {"name": "other", "arguments": {}}.',
        '<invoke name="other"></invoke>',
        "get",
    ):
        turn = read(name, text)
        assert (turn.content, turn.calls, turn.error) == (text, (), None)


def test_a_call_behind_one_whose_beginning_is_missing_is_not_made() -> None:
    headless = "functions.get:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    whole = "<|tool_call_begin|>functions.stop:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    turn = read("kimi_k2", f"{headless}<|tool_calls_section_begin|>{whole}<|tool_calls_section_end|>")
    assert (turn.calls, turn.error) == ((), "the beginning of the call is missing")
    turn = read("kimi_k2", f"<|tool_calls_section_begin|>{whole}{headless}<|tool_calls_section_end|>")
    assert (turn.calls, turn.error) == ((STOP,), "the beginning of the call is missing")


def test_a_second_call_that_is_cut_off_in_its_tag_is_told() -> None:
    one = '<｜DSML｜invoke name="stop">\n</｜DSML｜invoke>\n'
    turn = read("deepseek_dsml", f"<｜DSML｜function_calls>\n{one}<｜DSML｜invoke na")
    assert (turn.calls, turn.error) == ((STOP,), "the closing tag </｜DSML｜invoke> is missing")


@pytest.mark.parametrize("lines", [("\n", "\r\n"), ("\n<", "\n  <")], ids=["CRLF", "indented"])
def test_the_line_breaks_of_tags_are_no_part_of_a_value(lines: tuple[str, str]) -> None:
    text = "<tool_call>\n<function=get>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"
    assert read("qwen3_coder", text.replace(*lines)).calls == (GET,)


def test_a_message_behind_thoughts_that_are_not_ended_is_read() -> None:
    text = '<|channel|>analysis<|message|>Hm.<|channel|>commentary to=functions.get<|message|>{"path": "a"}'
    turn = read("harmony", text)
    assert (turn.thoughts, turn.content, turn.calls, turn.error) == ("Hm.", "", (GET,), None)


def test_a_pair_of_surrogates_is_one_character() -> None:
    turn = read("hermes", '<tool_call>{"name": "get", "arguments": {"path": "\\ud83c\\udf78"}}</tool_call>')
    assert turn.calls == (ToolCall("get", {"path": "🍸"}),)


@pytest.mark.parametrize(
    ("name", "text", "id"),
    [
        (
            "kimi_k2",
            "<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
            "functions.get:0",
        ),
        (
            "kimi_k2",
            "<|tool_call_begin|>functions.a.b:12<|tool_call_argument_begin|>{}<|tool_call_end|>",
            "functions.a.b:12",
        ),
        ("mistral", '[TOOL_CALLS][{"name": "get", "arguments": {}, "id": "abcdefghi"}]', "abcdefghi"),
        ("mistral", "[TOOL_CALLS]get[CALL_ID]abcdefghi[ARGS]{}", "abcdefghi"),
        ("cohere", '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get", "parameters": {}}]<|END_ACTION|>', "0"),
        ("solar", "<|tool_call:begin|>x1<|tool_call:name|>get<|tool_call:args|>{}<|tool_call:end|>", "x1"),
        ("hermes", '<tool_call>{"name": "get", "arguments": {}}</tool_call>', None),
    ],
)
def test_the_id_is_the_models_own(name: str, text: str, id: str | None) -> None:
    (call,) = read(name, text).calls
    assert call.id == id


def test_harmonys_thoughts_are_its_analysis() -> None:
    text = (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>It is 4."
    )
    turn = read("harmony", text)
    assert (turn.thoughts, turn.content) == ("One.\nTwo.", "It is 4.")
    assert plain_turn(text) == turn


@pytest.mark.parametrize(
    ("text", "opened", "thoughts", "content"),
    [
        ("It is 4.", "", None, "It is 4."),
        ("<think>hm</think>It is 4.", "", "hm", "It is 4."),
        ("hm</think>It is 4.", "<think>", "hm", "It is 4."),
        ("hm", "<think>", "hm", ""),
        ("[THINK]hm[/THINK]It is 4.", "", "hm", "It is 4."),
        ("hm<|END_THINKING|>It is 4.", "<|START_THINKING|>", "hm", "It is 4."),
        ("The tag <think> begins thoughts.", "", None, "The tag <think> begins thoughts."),
        ('<tool_call>{"name": "get"}</tool_call>', "", None, '<tool_call>{"name": "get"}</tool_call>'),
    ],
)
def test_a_turn_without_tools_has_thoughts_but_no_calls(
    text: str, opened: str, thoughts: str | None, content: str
) -> None:
    assert plain_turn(text, opened) == ParsedTurn(content, (), None, thoughts)


def test_the_parsers_that_read_a_call_are_found() -> None:
    text = '<tool_call>\n{"name": "get", "arguments": {"path": "a"}}\n</tool_call>'
    assert parsers_that_read(text, [GET], TOOLS) == ["granite", "hermes", "llama3_json", "xlam"]
    assert parsers_that_read("It is 4.", [GET], TOOLS) == []


@pytest.mark.parametrize(
    "text",
    [
        "it's so",
        "it's \"so\" \\n 'x'",
        "mkdir {a,b && echo ')' \"]",
        "print('a') and open('b', mode='w')",
        "<a href='x' class='y'>",
        "C:\\",
        "'",
        "it's\nso",
    ],
)
def test_quotes_that_a_template_does_not_escape_are_text(text: str) -> None:
    """LFM2.5's template writes a text between quotes as it is."""
    for written, wanted in (
        (f"get(text='{text}')", (ToolCall("get", {"text": text}),)),
        (f"get(text='{text}', path='p')", (ToolCall("get", {"text": text, "path": "p"}),)),
        (f"get(path='p', text='{text}'), stop()", (ToolCall("get", {"path": "p", "text": text}), STOP)),
        (f"stop(), get(text='{text}'), get(path='a')", (STOP, ToolCall("get", {"text": text}), GET)),
    ):
        turn = BUILT_IN["lfm2"].make(TOOLS).parse(f"<|tool_call_start|>[{written}]<|tool_call_end|>")
        assert (turn.error, turn.calls, turn.content) == (None, wanted, "")
