"""Rewards of the kind `swe`, from INIT to EVAL."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.core.errors import TaskError
from rollyard.trajectory import Turn
from tests.support.swe_repository import ADD, HIDDEN_TEST, KEEP, REFERENCE, swe_task
from tests.tasks.swe.conftest import Site

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEND = "sed -i 's/a - b/a + b/' calc/ops.py"
FORGED = "test_add (tests.test_add.Add.test_add) ... ok\\ntest_keep (tests.test_keep.Keep.test_keep) ... ok\\n\\nOK\\n"
SHORT = 4
ATTACKS = {
    "nothing": "true",
    "edits the tests": "echo 'import unittest' > tests/test_add.py; for f in tests/*.py; do : > $f; done",
    "deletes the tests": "rm -rf tests",
    "ends its process with success": "echo 'import os; os._exit(0)' > calc/ops.py",
    "wrong": "echo 'def add(a, b): return 7' > calc/ops.py",
    "leaves nothing": "rm -rf /testbed",
    "breaks another test": f"{MEND}; echo 'KEPT = 2' > calc/keep.py",
    "deletes what another test needs": f"{MEND}; rm calc/keep.py",
    "links the tests elsewhere": "mv tests /tmp/t; ln -s /tmp/t tests",
    "makes the tests' folder a file": "rm -rf tests; echo x > tests",
    "skips by a module of the standard library": "echo 'raise SystemExit(0)' > unittest.py",
    "replaces the standard library by a package": "mkdir unittest; echo 'raise SystemExit(0)' > unittest/__init__.py",
    "customizes Python": "echo 'import os; os._exit(0)' > sitecustomize.py",
    "names a path file": "echo 'import os; os._exit(0)' > calc.pth",
    "replaces Python": f"printf '#!/bin/sh\nprintf \"{FORGED}\"\n' > /usr/bin/python3",
    "has a virtual environment": "mkdir -p .venv/bin; echo x > .venv/pyvenv.cfg",
    "leaves a file in the repository's place": "cd /; rm -rf testbed; echo x > testbed",
    "never ends": "echo 'while True: pass' > calc/ops.py",
    "does not compile": "echo 'def' > calc/ops.py",
    "prints without end": "echo 'while True: print(1)' > calc/ops.py",
}  # fmt: skip


async def test_the_reference_gets_the_reward(site: Site) -> None:
    task = swe_task()
    async with site.fresh() as run:
        await site.handler.init(task, run)
        await site.handler.solve(task, run)
        artifact = await site.handler.collect(task, run)
    found = await site.scored(task, artifact)
    assert (found.reward, found.notes) == (1.0, ["every test passed"])
    assert (found.metrics["passed"], found.metrics["changed_files"], found.metrics["suspicious"]) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("work", [*ATTACKS.values()][:SHORT], ids=[*ATTACKS.keys()][:SHORT])
async def test_no_other_way_gets_it(site: Site, work: str) -> None:
    assert (await site.score(swe_task(), work)).reward == 0.0


@pytest.mark.long
@pytest.mark.parametrize("site", ["bubblewrap", "apptainer"], indirect=True)
@pytest.mark.parametrize("work", ATTACKS.values(), ids=ATTACKS.keys())
async def test_no_attack_gets_it_on_any_runtime(site: Site, work: str) -> None:
    assert (await site.score(swe_task(seconds=10), work)).reward == 0.0


@pytest.mark.parametrize("site", ["apptainer"], indirect=True)
async def test_apptainer_gives_the_same_rewards(site: Site) -> None:
    assert (await site.score(swe_task(), f"git add -A; {MEND}; rm -rf .git docs tests")).reward == 1.0


async def test_tests_that_are_too_slow_for_eval_with_the_reference_too_take_no_reward_from_honest_work(
    site: Site,
) -> None:
    slow = swe_task(script="sleep 60; python3 -m unittest -v tests.test_add tests.test_keep")
    with pytest.raises(TaskError, match=r"with the task's own reference either.*raise `stages.eval.timeoutSeconds`"):
        await site.score(slow, MEND, seconds=12)


async def test_work_counts_beside_tests_that_do_not(site: Site) -> None:
    broken = "for f in tests/test_keep.py tests/test_mine.py conftest.py; do echo broken > $f; done"
    work = f"{MEND}; {broken}; rm setup.cfg"
    found = await site.score(swe_task(), work)
    assert (found.reward, found.metrics["changed_files"], found.metrics["suspicious"]) == (1.0, 1.0, 1.0)
    assert found.metrics["tests_touched"] == found.metrics["test_settings_touched"] == 1.0
    assert found.notes == [
        "the agent changed tests, which does not count: tests/test_keep.py",
        "the agent changed how tests run, which does not count: conftest.py, setup.cfg",
    ]


async def test_a_file_that_is_too_large_is_left_out_with_a_note(site: Site) -> None:
    found = await site.score(
        swe_task(), f"{MEND}; head -c 5000000 /dev/zero > core; head -c 5000000 /dev/zero > docs/guide.txt"
    )
    assert (found.reward, found.metrics["changed_files"]) == (1.0, 1.0)
    assert "/testbed/core, /testbed/docs/guide.txt" in found.notes[-1]


async def test_more_than_an_artifact_can_hold_is_refused_with_a_note(site: Site) -> None:
    found = await site.score(swe_task(), f"{MEND}; for n in 1 2 3; do head -c 3000000 /dev/urandom > docs/$n; done")
    assert (found.reward, found.metrics["refused"]) == (0.0, 1.0)
    assert "4128768 bytes when they are compressed" in found.notes[0]


@pytest.mark.long
async def test_what_the_task_includes_and_excludes_decides(site: Site) -> None:
    work = "echo 'def add(a, b): return a + b' > tests/helper.py; echo 'from tests.helper import add' > calc/ops.py"
    assert (await site.score(swe_task(), work)).reward == 0.0
    assert (await site.score(swe_task(included=["tests/helper.py"]), work)).reward == 1.0
    assert (await site.score(swe_task(excluded=["calc/"], reference_patch=None), MEND)).reward == 0.0


async def test_tests_may_come_as_a_patch_and_the_image_from_a_script(site: Site) -> None:
    lines = "".join(f"+{line}\n" for line in HIDDEN_TEST.splitlines())
    head = "diff --git a/tests/test_add.py b/tests/test_add.py\nnew file mode 100644\n--- /dev/null\n+++ b/tests/test_add.py\n"
    patch = f"{head}@@ -0,0 +1,{len(HIDDEN_TEST.splitlines())} @@\n{lines}"
    task = swe_task(test_files={}, test_patch=patch, setup="echo made > made.txt")
    work = f"test -e made.txt && {MEND}; printf 'x = (\\n' > tests/test_add.py"
    assert (await site.score(task, work)).reward == 1.0


async def test_a_script_with_marks_is_read_between_them_alone(site: Site) -> None:
    tests = "python3 -m unittest -v tests.test_add tests.test_keep"
    inner = f"set -x\n: '>>>>> Start Test Output'\n{tests}\n: '>>>>> End Test Output'\n"
    script = f"echo '{ADD} ... ok'\n{inner}echo '{KEEP} ... ok'\n"
    artifact = await site.worked(swe_task(), MEND)
    assert (await site.scored(swe_task(script=script), artifact)).reward == 1.0
    found = await site.scored(swe_task(script=script.replace("tests.test_add ", "")), artifact)
    assert (found.reward, found.notes[0]) == (0.0, f"{ADD}: did not run"), "it ran outside of the marks"


async def test_notes_have_the_end_of_the_log_and_a_name_that_is_like_an_absent_one(site: Site) -> None:
    tail = "printf 'first%01000d\\033[31mred\\033[0m\\a last\\n' 0"
    task = swe_task(
        script=f"python3 -m unittest -v tests.test_add tests.test_keep\n{tail}", fail_to_pass=[f"{ADD} [x]"]
    )
    found = await site.score(task, MEND)
    assert found.reward == 0.0
    assert found.notes[0] == f"{ADD} [x]: did not run; the log has `{ADD}`"
    assert found.notes[-1].startswith("the log of the tests ends with: 0000")
    assert found.notes[-1].endswith("00red last")
    assert len(found.notes[-1]) < 850


async def test_tests_that_do_not_run_are_the_agents_fault_if_they_run_with_the_reference(site: Site) -> None:
    task = swe_task()
    artifact = await site.worked(task, "echo 'raise SystemExit(3)' > calc/ops.py")
    found = await site.scored(task, artifact)
    assert (found.reward, found.metrics["tests_not_run"], found.notes[0]) == (0.0, 1.0, "none of the tests ran")
    before = site.started
    assert await site.scored(task, artifact) == found
    assert site.started == before + 1, "what the reference does is known"


async def test_tests_that_do_not_run_with_the_reference_either_give_no_verdict(site: Site) -> None:
    task = swe_task(script="python3 -m unittest_of_another_image")
    with pytest.raises(TaskError, match="with the task's own reference either"):
        await site.score(task, MEND)


@pytest.mark.long
async def test_repeated_runs_stop_at_the_first_that_decides(site: Site) -> None:
    artifact = await site.worked(swe_task(), "true")
    assert (await site.scored(swe_task(repeats=3), artifact)).metrics["runs"] == 1.0
    assert (await site.scored(swe_task(repeats=2, verdict="majority"), artifact)).metrics["runs"] == 2.0


async def test_a_parser_script_runs_where_no_code_of_the_agent_ran(site: Site) -> None:
    parser = (
        "import json, re, sys\n"
        "ok = dict.fromkeys(re.findall(r'^(test_.*) \\.\\.\\. ok$', open(sys.argv[2]).read(), re.M), 'passed')\n"
        "json.dump({'tests': [{'name': n, 'status': s} for n, s in ok.items()]}, open(sys.argv[3], 'w'))\n"
    )
    task = swe_task(log_parser=None, parser_script=parser)
    forge = "import os; os.remove('/usr/bin/python3'); open('/usr/bin/python3', 'w').write('#!/bin/sh')"
    assert (await site.score(task, f'{MEND}; echo "{forge}" >> calc/ops.py')).reward == 1.0


async def test_the_status_of_every_test_can_be_expected(site: Site) -> None:
    artifact = await site.worked(swe_task(), "true")
    lists = {"fail_to_pass": [], "pass_to_pass": []}
    assert (await site.scored(swe_task(**lists, expected={ADD: "FAILED", KEEP: "PASSED"}), artifact)).reward == 1.0
    assert (await site.scored(swe_task(**lists, expected={KEEP: "PASSED"}), artifact)).reward == 0.0, (
        "one test too many"
    )


async def test_hidden_files_are_absent_for_the_agent_and_there_for_the_tests(site: Site) -> None:
    task = swe_task(hidden=["/hidden/run.sh", "tool.sh"], setup="mkdir -p /hidden; echo 'exit 0' > /hidden/run.sh")
    script = "bash /hidden/run.sh && test -e tool.sh && python3 -m unittest -v tests.test_add tests.test_keep"
    async with site.fresh() as run:
        await site.handler.init(task, run)
        seen = await run.bash(
            "cat /hidden/run.sh tool.sh; cd /testbed; git show HEAD:tool.sh; git log --oneline | wc -l", 60
        )
        assert seen.output.count("No such file") == 2
        assert "does not exist" in seen.output or "exists on disk" in seen.output
    artifact = await site.worked(task, MEND)
    call = {"name": "bash", "arguments": {"command": "find / -name run.sh; cat /hidden/run.sh"}}
    turn = Turn(segment=0, prompt_length=1, response_length=1, text="", finish_reason="stop", tool_calls=[call])
    with_script = swe_task(hidden=task.fields["hidden"], setup=task.fields["setup"], script=script)
    found = await site.scored(with_script, artifact, [turn])
    assert (found.reward, found.metrics["evaluator_sought"], found.metrics["suspicious"]) == (1.0, 1.0, 1.0)


async def test_an_image_at_the_base_commit_keeps_its_changes_and_another_is_checked_out(site: Site) -> None:
    mine = "git config user.name a; git config user.email a@example.org; echo prepared > prepared.txt"
    for prepare, message, kept in ((mine, "", True), (mine, "SWE-bench", True), (mine, "the fix", False)):
        commit = f"git add -A; git commit -qm '{message}'" if message else ""
        async with site.fresh() as run:
            base = (await run.bash("cd /testbed; git rev-parse HEAD", 60)).output.strip()
            await run.bash(f"cd /testbed; {prepare}; {commit}", 60)
            await site.handler.init(swe_task(base_commit=base), run)
            seen = await run.bash("cd /testbed; test -e prepared.txt; echo $?; git log --format=%s | head -1", 60)
        assert seen.output.split("\n")[:2] == ["0" if kept else "1", message if kept and message else "base"]


async def test_a_reward_without_a_change_is_marked(site: Site) -> None:
    task = swe_task(fail_to_pass=[KEEP], pass_to_pass=[])
    found = await site.score(task, "echo mine > tests/test_mine.py")
    assert (found.reward, found.metrics["suspicious"], found.metrics["reward_without_change"]) == (1.0, 1.0, 1.0)
    assert "tests_touched" not in found.metrics, "an agent may write tests for itself"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"repository": "/nowhere"}, "has no folder /nowhere"),
        ({"setup": "echo broken; exit 3"}, "cannot be prepared: broken"),
        ({"base_commit": "0123456789"}, "cannot be prepared: it has no commit 0123456789"),
    ],
)
async def test_a_wrong_task_is_named(site: Site, wrong: dict[str, Any], message: str) -> None:
    async with site.fresh() as run:
        with pytest.raises(TaskError, match=message):
            await site.handler.init(swe_task(**wrong), run)


async def test_a_patch_that_does_not_fit_is_the_tasks_fault(site: Site) -> None:
    artifact = await site.worked(swe_task(), MEND)
    with pytest.raises(TaskError, match="`test_patch` cannot be applied"):
        await site.scored(swe_task(test_patch=REFERENCE.replace("a - b", "a * b")), artifact)
