"""The committed policy and the texts it was trained on."""

from __future__ import annotations

import ast
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.tiny_policy import families, template, trajectories
from examples.tiny_policy.offline import NotOffline, Toolbox, call_function, evaluate
from examples.tiny_policy.trajectories import CODE, MATH
from rollyard.tasks import tool_results

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples/tiny_policy/model"

SETTINGS = {"math": MATH, "code": CODE}
SAMPLES = {"math": families.sample_math, "code": families.sample_code}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def policy() -> Any:
    from examples.tiny_policy.evaluate import Policy

    return Policy(MODEL)


def render(tokenizer: Any, setting: template.Setting, chat: list[dict[str, Any]], prompt: bool) -> str:
    messages = [{"role": "system", "content": setting.system}, *chat]
    text = tokenizer.apply_chat_template(
        messages, tools=list(setting.tools), add_generation_prompt=prompt, tokenize=False
    )
    return str(text)


def conversations(count: int) -> list[tuple[template.Setting, list[template.Message]]]:
    rng = random.Random(5)
    settings = [trajectories.draw_setting(rng) for _ in range(count)]
    return [(s, trajectories.conversation(trajectories.draw_problem(rng, s), rng)) for s in settings]


# Task families


@pytest.mark.parametrize("kind", ["math", "code"])
def test_the_split_is_disjoint(kind: str) -> None:
    draw = {"math": families.draw_math, "code": families.draw_code}[kind]
    rng = random.Random(1)
    seen, held_out = ({draw(rng, part).key for _ in range(1500)} for part in (False, True))
    assert not seen & held_out
    assert len(held_out) > 1000


def test_math_answers_are_what_python_computes() -> None:
    rng = random.Random(2)
    for _ in range(300):
        problem = families.draw_math(rng, True)
        assert problem.task()["answer"] == str(eval(problem.expression))


def test_the_cases_accept_the_reference_and_refuse_a_constant_that_is_off_by_one() -> None:
    rng = random.Random(3)
    for _ in range(300):
        problem = families.draw_code(rng, True)
        task = problem.task()
        names: dict[str, Any] = {}
        exec(problem.source, names)
        assert all(eval(case["call"], names) == ast.literal_eval(case["expect"]) for case in task["cases"])
        head, body = problem.source.split("return ")
        wrong = head + "return " + re.sub(r"\d+", lambda number: str(int(number[0]) + 1), body, count=1)
        assert not Toolbox({problem.path: wrong}).passes(problem.path, task["cases"])


def test_tasks_are_printed_as_json_lines() -> None:
    command = [sys.executable, "-m", "examples.tiny_policy.families", "--kind", "code", "--n", "3", "--held-out"]
    runs = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=240) for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    tasks = [json.loads(line) for line in runs[0].stdout.splitlines()]
    assert [set(task) for task in tasks] == [{"kind", "problem", "solution", "cases"}] * 3
    assert all(task["solution"].startswith("/workspace/") for task in tasks)


# Tools in-process


def test_only_known_forms_are_evaluated() -> None:
    assert evaluate("max(3, n) % 5 + sum([1, 2])", {"n": 9}) == 7
    for source in ("2 ** 9", "__import__('os')", "().__class__", "'a' * 3", "[x for x in [1]]"):
        with pytest.raises(NotOffline):
            evaluate(source)
    with pytest.raises(NotOffline):
        call_function("import os\ndef f(x):\n    return x", "f(1)")


def test_python_errors_read_as_ipython_prints_them(tmp_path: Path) -> None:
    cells = ["12 34", "12*+*3", "12 + x", "5 % 0"]
    script = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance(colors='nocolor', xmode='Plain')\n"
        f"for cell in {cells}:\n"
        "    shell.run_cell(cell, store_history=True)\n"
        "    print('--end of cell--')\n"
    )
    command = [sys.executable, "-c", script]
    home = {"HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path)}
    run = subprocess.run(command, env=home, cwd=ROOT, capture_output=True, text=True, check=True, timeout=240)
    box = Toolbox()
    printed = run.stdout.split("--end of cell--\n")[:-1]
    assert [box.ipython(cell) for cell in cells] == [tool_results.ipython_result(text) for text in printed]


# Chat format


def test_a_file_is_checked_as_its_compilation_checks_it() -> None:
    box = Toolbox()
    check = "python3 -m py_compile /workspace/app.py && echo OK"
    written = tool_results.bash_result("", 0)
    for source, good in [("def f(x):\n    return x", True), ("return 3", False), ("3(4)", False), ("def f(:", False)]:
        assert box.bash(f"cat > /workspace/app.py <<'EOF'\n{source}\nEOF\n") == written
        assert (box.bash(check) == tool_results.bash_result("OK", 0)) is good
    ends_twice = "cat > /workspace/app.py <<'EOF'\npass\nEOF\nEOF"
    assert box.bash(ends_twice) != written, "its last line is a command"


def test_training_text_is_what_the_template_renders(tokenizer: Any) -> None:
    for setting, messages in conversations(60):
        rendered = render(tokenizer, setting, [m.chat() for m in messages], prompt=False)
        cut = template.parts(messages)
        assert template.opening(setting) + "".join(part.text for part in cut) + "\n" == rendered


def test_training_ids_are_what_a_prompt_and_its_continuation_tokenise_to(tokenizer: Any) -> None:
    for setting, messages in conversations(30):
        cut = template.parts(messages)
        prompt = render(tokenizer, setting, [messages[0].chat()], prompt=True)
        assert tokenizer.encode(template.opening(setting)) + tokenizer.encode(cut[0].text) == tokenizer.encode(prompt)
        reply = tokenizer.encode(cut[1].text)
        assert reply[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(reply[:-1], skip_special_tokens=True) == messages[1].content


def test_rendering_more_turns_only_appends(tokenizer: Any) -> None:
    for setting, messages in conversations(30):
        chat = [m.chat() for m in messages]
        for place in (i for i, message in enumerate(messages) if message.role == "assistant"):
            prompt = render(tokenizer, setting, chat[:place], prompt=True)
            after = render(tokenizer, setting, chat[: place + 1], prompt=False)
            assert after == prompt + messages[place].content + "<|im_end|>\n"
            assert render(tokenizer, setting, chat, prompt=False).startswith(after)


def test_structured_calls_and_several_results_render_as_text_calls_do(tokenizer: Any) -> None:
    call = {"type": "function", "function": {"name": "ipython", "arguments": {"code": "1 + 1"}}}
    results = [{"role": "tool", "content": "2"}, {"role": "tool", "content": "3"}]
    text = template.tool_call("ipython", {"code": "1 + 1"})
    user = {"role": "user", "content": "What is 1 + 1?"}
    structured = [user, {"role": "assistant", "content": "", "tool_calls": [call, call]}, *results]
    verbatim = [user, {"role": "assistant", "content": f"{text}\n{text}"}, *results]
    rendered = render(tokenizer, MATH, structured, prompt=True)
    assert rendered == render(tokenizer, MATH, verbatim, prompt=True)
    assert rendered.count("<|im_start|>user") == 2


def test_the_committed_template_and_vocabulary_are_those_of_the_source(tokenizer: Any) -> None:
    assert tokenizer.chat_template.strip() == template.chat_template().strip()
    assert len(tokenizer.encode("407")) == 3
    assert tokenizer.eos_token == template.TURN_END


# The model


def test_the_folder_is_small_and_says_how_it_was_made(policy: Any) -> None:
    figures = json.loads((MODEL / "training.json").read_text())
    assert policy.model.config.model_type == "qwen3"
    assert policy.model.config.max_position_embeddings >= 4096
    assert policy.model.num_parameters() == figures["parameters"]
    assert (MODEL / "model.safetensors").stat().st_size <= 4 * 2**20


def test_an_opening_computed_once_gives_the_loss_of_an_opening_in_every_row(policy: Any) -> None:
    from examples.tiny_policy.train import Batch, Row, batch_loss, encode

    prefix = policy.tokenizer.encode(template.opening(MATH))
    rows = [
        encode(policy.tokenizer, template.parts(messages)) for setting, messages in conversations(40) if setting == MATH
    ][:3]
    whole = [Row(prefix + row.ids, [False] * len(prefix) + row.trained) for row in rows]
    shared, repeated = batch_loss(policy.model, Batch(prefix, rows)), batch_loss(policy.model, Batch([], whole))
    assert len({len(row.ids) for row in rows}) > 1
    assert shared.item() == pytest.approx(repeated.item(), abs=1e-4)


@pytest.mark.parametrize(("kind", "bar"), [("math", 0.8), ("code", 0.8)])
def test_greedy_replies_solve_held_out_tasks(policy: Any, kind: str, bar: float) -> None:
    from examples.tiny_policy.evaluate import attempt_all

    attempts = attempt_all(policy, kind, tasks=32, temperature=0.0, seed=11)
    assert sum(a.succeeded() for a in attempts) / len(attempts) >= bar
