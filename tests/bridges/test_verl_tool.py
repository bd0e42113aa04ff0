"""VeRL-Tool's tool server: a sandbox for each trajectory, which is gone when it is finished, idle, or the bridge is killed."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollyard.bridges.verl_tool.actions import Action, action_of, observation_of
from rollyard.client import AsyncClient
from tests.support.bridge_process import BridgeProcess
from tests.support.yard import ROOT, Yard

WORDS = ("verl-tool", "--runtime", "bubblewrap")
TURNS = [
    (
        "<python>x = 1</python> and <python>x + 1</python>",
        Action("python", "x = 1\nx + 1"),
        "\n<output>\n2\n</output>\n",
    ),
    ("<python>2</python>\n<output>", Action("python", "2"), "\n2\n</output>\n"),
    ("First.\n```python\n2\n```\n", Action("python", "2"), "\n```output\n2\n```\n"),
    ("First.\n```python\n2\n```\n```output", Action("python", "2"), "\n2\n```\n"),
    ("First.\n```python\n2\n```\n```", Action("python", "2"), "output\n2\n```\n"),
    ('<tool_call>{"name": "python", "arguments": {"code": "2"}}</tool_call>', Action("python", "2"), "2"),
    ("<bash>echo 2</bash>", Action("bash", "echo 2"), "\n<o>\n2\n</o>\n"),
    ("```terminal\necho 2\n``` So.", Action("bash", "echo 2"), "\n2\n"),
    ("```sh\necho 2\n```", Action("bash", "echo 2"), "\n```output\n2\n```\n"),
]


@pytest.mark.parametrize(("text", "action", "observation"), TURNS)
def test_the_end_of_the_text_decides_about_the_frame(text: str, action: Action, observation: str) -> None:
    assert action_of(text) == action
    assert observation_of(text, action.tool, "2\n") == observation


@pytest.mark.parametrize("text", ["", "python", "```bash", "<tool_call>[</tool_call>", "<tool_call>[]</tool_call>"])
def test_other_texts_are_no_action(text: str) -> None:
    assert action_of(text) is None


def acts(*actions: tuple[str, str], **more: Any) -> dict[str, Any]:
    ids, texts = zip(*actions, strict=True)
    return {"trajectory_ids": ids, "actions": texts, "extra_fields": [{} for _ in ids], **more}


def processes(mark: str) -> int:
    """Count the processes with this word in their command line."""
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += mark.encode() in file.read_bytes()
        except OSError:
            continue
    return found


@pytest.mark.asyncio(loop_scope="package")
async def test_a_trajectory_keeps_its_sandbox_until_it_is_finished_or_the_bridge_is_killed(
    served: tuple[Yard, AsyncClient],
) -> None:
    yard, _ = served
    mark = f"left-by-{secrets.token_hex(4)}"
    async with BridgeProcess(yard, *WORDS, "--sandboxes", "2", "--seconds", "120") as bridge:
        both = acts(("a", "<bash>export A=5; echo 1 > f</bash>"), ("b", "<python>y = 7</python>"))
        done = await bridge.post("/get_observation", both)
        assert (done["dones"], done["valids"]) == ([False, False], [True, True])
        again = acts(
            ("a", "<bash>echo $A; ls</bash>"), ("b", "<python>y, __import__('os').listdir()</python>"), ("b", "?")
        )
        done = await bridge.post("/get_observation", again)
        assert done["observations"][:2] == ["\n<o>\n5\nf\n</o>\n", "\n<output>\n(7, [])\n</output>\n"]
        assert (done["observations"][2]["obs"], done["valids"]) == ("", [True, True, False])

        async with bridge.http.post(f"{bridge.url}/get_observation", json=acts(("c", "<bash>:</bash>"))) as answer:
            assert answer.status == 503
            assert "--sandboxes" in (await answer.json())["detail"]
        for wrong in ({}, acts(("a", ""), finish=[]), {"trajectory_ids": [], "actions": []}):
            async with bridge.http.post(f"{bridge.url}/get_observation", json=wrong) as answer:
                assert answer.status == 422
        done = await bridge.post("/get_observation", acts(("a", ""), finish=[True]))
        assert done == {"observations": [""], "dones": [True], "valids": [True]}
        started = acts(("a", f"<bash>ls; (exec -a {mark} sleep 600) &</bash>"))
        done = await bridge.post("/get_observation", started)
        assert "f\n" not in done["observations"][0], "a finished trajectory begins anew"

        async def runs() -> bool:
            return processes(mark) > 0

        async def gone() -> bool:
            return processes(mark) == 0

        await yard.until(runs)
        await asyncio.to_thread(bridge.kill)
        await yard.until(gone)
        await asyncio.to_thread(bridge.start)


@pytest.mark.asyncio(loop_scope="package")
async def test_an_action_has_a_time_limit_and_an_idle_sandbox_ends(served: tuple[Yard, AsyncClient]) -> None:
    yard, _ = served
    async with BridgeProcess(yard, *WORDS, "--seconds", "1", "--idle-seconds", "1") as bridge:
        done = await bridge.post("/get_observation", acts(("a", "<bash>sleep 600</bash>")))
        assert "Execution time out after 1 seconds" in done["observations"][0]

        async def ended() -> bool:
            async with bridge.http.get(f"{bridge.url}/health") as answer:
                return (await answer.json())["sandboxes"] == 0

        await yard.until(ended)


def test_a_machine_that_allows_too_few_open_files_is_told_at_the_start() -> None:
    command = f"ulimit -n 512; exec {sys.executable} -m rollyard.cli.main bridge verl-tool"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "lower --sandboxes" in done.stderr
