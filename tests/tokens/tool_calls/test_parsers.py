"""Each family's form of calls, and what each parser makes of what is none."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.core.errors import TaskError
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.tool_calls import NoParserFits, ParsedTurn, ToolCall, parser_for
from rollyard.tokens.tool_calls.base import ToolCallParser
from rollyard.tokens.tool_calls.parser_choice import BUILT_IN
from tests.support.template_families import FAMILIES

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "view",
            "parameters": {
                "properties": {"path": {"type": "string"}, "lines": {"type": "array"}, "n": {"type": "integer"}}
            },
        },
    }
]
VIEW = ToolCall("view", {"path": "12", "lines": [1, 2]})
STOP = ToolCall("stop", {})


def parser(name: str) -> ToolCallParser:
    made: ToolCallParser = BUILT_IN[name].make(TOOLS)
    return made


def deepseek(*bodies: str) -> str:
    calls = "".join(f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>" for body in bodies)
    return f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


THOUGHT = deepseek("stop<｜tool▁sep｜>{}")
JSON = '{"path": "12", "lines": [1, 2]}'
PAIRS = "<arg_key>path</arg_key>\n<arg_value>12</arg_value>\n<arg_key>lines</arg_key>\n<arg_value>[1, 2]</arg_value>\n"
PARAMETERS = "<parameter=path>\n12\n</parameter>\n<parameter=lines>\n[1, 2]\n</parameter>\n"


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("llama3_json", f'{{"name": "view", "parameters": {JSON}}}', "", (VIEW,)),
        ("llama3_json", f'<|python_tag|>{{"name": "view", "arguments": {JSON}}}', "", (VIEW,)),
        ("llama3_json", f'{{"name": "view", "parameters": {JSON}}}; {{"name": "stop"}}', "", (VIEW, STOP)),
        ("llama3_json", "<|python_tag|>print(1)", "", (ToolCall("ipython", {"code": "print(1)"}),)),
        ("llama3_json", "It is {12}.", "It is {12}.", ()),
        ("mistral", f'Look. [TOOL_CALLS] [{{"name": "view", "arguments": {JSON}}}]', "Look.", (VIEW,)),
        ("mistral", f'[TOOL_CALLS][{{"name": "view", "arguments": {JSON}}}, {{"name": "stop"}}]', "", (VIEW, STOP)),
        ("mistral", f"[TOOL_CALLS]view[ARGS]{JSON}[TOOL_CALLS]stop[CALL_ID]abc[ARGS]{{}}", "", (VIEW, STOP)),
        ("mistral", f"[TOOL_CALLS]view{JSON}", "", (VIEW,)),
        ("deepseek", "Look.\n" + deepseek(f"function<｜tool▁sep｜>view\n```json\n{JSON}\n```"), "Look.", (VIEW,)),
        ("deepseek", deepseek(f"view<｜tool▁sep｜>{JSON}", "stop<｜tool▁sep｜>{}"), "", (VIEW, STOP)),
        ("deepseek", f"{THOUGHT}</think>No.", "No.", ()),
        ("glm", f"Look.\n<tool_call>view\n{PAIRS}</tool_call>", "Look.", (VIEW,)),
        ("glm", f"<tool_call>view{PAIRS}</tool_call>\n<tool_call>stop\n</tool_call>", "", (VIEW, STOP)),
        ("qwen3_coder", f"<tool_call>\n<function=view>\n{PARAMETERS}</function>\n</tool_call>", "", (VIEW,)),
        (
            "qwen3_coder",
            "<tool_call><function=view><parameter=path>\n a\n  b\n\n</parameter></function></tool_call>",
            "",
            (ToolCall("view", {"path": " a\n  b\n"}),),
        ),
        (
            "harmony",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.view "
            f"<|constrain|>json<|message|>{JSON}",
            "",
            (VIEW,),
        ),
        (
            "harmony",
            f"<|channel|>commentary to=functions.view<|message|>{JSON}<|call|><|start|>assistant"
            "<|channel|>commentary to=functions.stop<|message|>{}",
            "",
            (VIEW, STOP),
        ),
        ("harmony", " to=functions.stop<|channel|>commentary json<|message|>{}", "", (STOP,)),
        (
            "harmony",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>4.",
            "4.",
            (),
        ),
        ("harmony", "4.", "4.", ()),
    ],
)
def test_calls_of_each_family(name: str, text: str, content: str, calls: tuple[ToolCall, ...]) -> None:
    turn = parser(name).parse(text)
    assert (turn.content, turn.calls, turn.error) == (content, calls, None)


@pytest.mark.parametrize(
    ("name", "text", "calls", "error"),
    [
        ("llama3_json", '{"name": "stop"}; {"name": ', 1, "Expecting value"),
        ("llama3_json", '{"parameters": {}}', 0, "`name` must be a string"),
        ("llama3_json", '{"name": "stop", "parameters": [1]}', 0, "`parameters` must be a JSON object"),
        ("llama3_json", "<|python_tag|> ", 0, "nothing stands behind"),
        ("mistral", "[TOOL_CALLS] I will", 0, "Expecting value"),
        ("mistral", "[TOOL_CALLS] []", 0, "no JSON array of calls"),
        ("mistral", '[TOOL_CALLS][{"name": "stop"}] now', 1, "something else"),
        ("mistral", '[TOOL_CALLS][{"name": "stop"}, {"arguments": {}}]', 1, "`name` must be a string"),
        ("mistral", '[TOOL_CALLS]view[ARGS]{"path": NaN}', 0, "JSON"),
        ("deepseek", deepseek("view"), 0, "<｜tool▁sep｜> is missing"),
        ("deepseek", deepseek("stop<｜tool▁sep｜>{}", "view<｜tool▁sep｜>{"), 1, "Expecting"),
        ("deepseek", deepseek("function<｜tool▁sep｜>\n```json\n{}\n```"), 0, "name is missing"),
        ("deepseek", "<｜tool▁call▁begin｜>view<｜tool▁sep｜>{", 0, "closing tag <｜tool▁call▁end｜> is missing"),
        ("deepseek", deepseek(), 0, "stands no call"),
        ("glm", "<tool_call></tool_call>", 0, "name of the function is missing"),
        ("glm", "<tool_call>view<arg_key>path</arg_key></tool_call>", 0, "this is no argument"),
        ("glm", f"<tool_call>view{PAIRS}", 0, "closing tag </tool_call> is missing"),
        ("qwen3_coder", '<tool_call>{"name": "stop"}</tool_call>', 0, "<function=NAME>"),
        ("qwen3_coder", "<tool_call><function=view><parameter=path>1", 0, "closing tag </function> is missing"),
        ("qwen3_coder", "<tool_call><function=view></function>x</tool_call>", 1, "something else"),
        ("harmony", "<|channel|>commentary to=browser.search<|message|>{}", 0, "must be functions.NAME"),
        ("harmony", "<|channel|>commentary to=functions.view", 0, "<|message|> is missing"),
        ("harmony", "<|channel|>commentary to=functions.view<|message|>", 0, "the arguments are missing"),
        ("harmony", "<|channel|>commentary to=functions.view<|message|>ls", 0, "Expecting value"),
    ],
)
def test_a_malformed_call_of_each_family_says_why(name: str, text: str, calls: int, error: str) -> None:
    turn = parser(name).parse(text)
    assert len(turn.calls) == calls
    assert turn.error is not None
    assert error in turn.error


@pytest.mark.parametrize(
    "tool",
    [
        {"function": {"name": "view", "parameters": None}},
        {"function": {"name": "view", "parameters": {"properties": None}}},
        {
            "function": {
                "name": "view",
                "parameters": {"properties": {"path": None, "n": {"type": ["integer", "null"]}}},
            }
        },
        {"function": {"name": "view", "parameters": []}},
        {"function": {"name": None, "parameters": {"properties": {"path": {"type": "integer"}}}}},
        {"function": {"parameters": {"properties": {"path": {"type": "integer"}}}}},
        {"function": None},
    ],
)
def test_a_tool_that_declares_no_types_is_no_error(tool: dict[str, Any]) -> None:
    text = "<tool_call>view<arg_key>path</arg_key><arg_value>12</arg_value></tool_call>"
    turns = {name: family.make([tool, *TOOLS]).parse(text) for name, family in BUILT_IN.items()}
    assert turns["glm"].calls == (ToolCall("view", {"path": "12"}),)


PIECES = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("<function=", ">", "</function>", "<parameter=", "</parameter>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>", "```json", "```"),
    *("<|channel|>", "commentary", "analysis", "to=functions.", "<|message|>", "<|call|>", "<|end|>", "<|python_tag|>"),
    *("{", "}", "[", "]", '"name"', '"arguments"', '"parameters"', ":", ",", ";", "null", "NaN", "1e999", "\\ud800"),
    *('{"name": "a", "arguments": {}}', "\ud800", "\n", " ", "a", '"a"', "[" * 40, "{" * 2000, '{"a":' * 40),
]


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=60, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=25).map("".join))
def test_no_text_makes_a_parser_raise(name: str, text: str) -> None:
    turn = parser(name).parse(text)
    assert turn.error is None or turn.error
    for call in turn.calls:
        assert isinstance(call.name, str)
        assert isinstance(call.arguments, dict)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", "[TOOL_CALLS]~x"),
        ("mistral", "[TOOL_CALLS]view~x"),
        ("mistral", "[TOOL_CALLS]view[CALL_ID]~abc~[ARGS]~x"),
        ("glm", "<tool_call>view<arg_key>path</arg_key>~</tool_call>"),
        ("qwen3_coder", "<tool_call><function=view>~x</function>~</tool_call>"),
    ],
)
def test_a_page_of_spaces_is_read_in_one_go(name: str, text: str) -> None:
    """Tried in every split, these would take hours."""
    turn = parser(name).parse(text.replace("~", " " * 200_000))
    assert not turn.calls
    assert turn.error is not None


@pytest.fixture
def template(model_dir: Path) -> Any:
    """template(source): the model's tokenizer under another chat template."""
    loaded = ChatTemplate.load(model_dir)

    def make(source: str) -> ChatTemplate:
        loaded._tokenizer.chat_template = source
        return loaded

    return make


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_template_shows_the_family(family: Any, template: Any) -> None:
    assert type(parser_for(template(family.template))) is BUILT_IN[family.parser].make


def test_a_name_wins_over_the_template(template: Any, model_dir: Path) -> None:
    plain = template("{{ messages[0].content }}")
    with pytest.raises(NoParserFits, match="shows no form of tool calls"):
        parser_for(plain, tools=TOOLS)
    assert parser_for(plain).parse('<tool_call>{"name": "stop"}</tool_call>').calls == ()
    assert parser_for(plain, "llama3_json").parse('{"name": "stop"}').calls == (STOP,)
    with pytest.raises(
        TaskError, match=r"this node has no tool-call parser 'llama'; it has apertus.*hermes, .*llama3_json"
    ):
        parser_for(plain, "llama")


class Shouting:
    """A plug-in: what is in capitals is a call."""

    form = "SHOUT."
    error_role = "tool"

    def __init__(self, tools: Any) -> None:
        self.tools = tools

    def parse(self, text: str) -> ParsedTurn:
        return ParsedTurn("", (ToolCall(text.lower(), {}),)) if text.isupper() else ParsedTurn(text)


def test_an_installed_parser_is_found_by_its_name(
    template: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = tmp_path / "shouting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[rollyard.tool_parsers]\nshouting = {__name__}:Shouting\nbroken = nowhere:X\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    found = parser_for(template("{{ 1 }}"), "shouting", TOOLS)
    assert found.parse("STOP").calls == (STOP,)
    with pytest.raises(TaskError, match="'broken' cannot be created: ModuleNotFoundError"):
        parser_for(template("{{ 1 }}"), "broken", TOOLS)
    assert parser("hermes").parse("STOP").calls == ()
