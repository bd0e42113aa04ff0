"""IPython in a sandbox: its state, the order of its output, and what cells do to their process."""

from __future__ import annotations

import asyncio
import re

import pytest

from rollyard.sandbox.base import Runtime
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from tests.support.cut_off import cut_off

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    """The tools are the same in every runtime; test_runtimes.py tries them in each."""
    return find_runtime("bubblewrap")


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("1+1", "2\n"),
        ("1+1;", ""),
        ("x = 3", ""),
        ("'text'", "'text'\n"),
        ("print('a'); 'b'", "a\n'b'\n"),
        ("None", ""),
        ("", ""),
        ("def f():\n    return 7\n\nf()", "7\n"),
        ("import asyncio\nawait asyncio.sleep(0, 'awaited')", "'awaited'\n"),
        ("%%bash\necho from bash", "from bash\n"),
        ("!echo from a shell", "from a shell\n"),
        ("print('ünïcödé')", "ünïcödé\n"),
        ("import sys; sys.stdout.buffer.write(b'\\xff') and None", "�"),
    ],
)
async def test_cells(sandbox: Sandbox, code: str, output: str) -> None:
    result = await sandbox.ipython(code, 10)
    assert (result.output, result.error, result.restarted) == (output, False, False)


async def test_everything_printed_stays_in_order(sandbox: Sandbox) -> None:
    code = """
import os, subprocess, sys
print("one", end=" ")
os.system("echo two")
print("three", file=sys.stderr)
os.write(1, b"four\\n")
subprocess.run(["sh", "-c", "echo five >&2"])
"value"
"""
    assert (await sandbox.ipython(code, 10)).output == "one two\nthree\nfour\nfive\n'value'\n"


async def test_state_is_kept(sandbox: Sandbox) -> None:
    await sandbox.ipython("import math\ny = 21", 10)
    assert (await sandbox.ipython("math.floor(y * 2)", 10)).output == "42\n"


async def test_a_new_process_has_run_no_cell(sandbox: Sandbox) -> None:
    """The kernel warms itself up before its first cell, which leaves no trace."""
    await sandbox.ipython("import os; os._exit(0)", 10)
    shown = await sandbox.ipython("_, __, Out, len(In), get_ipython().execution_count", 10)
    assert shown.output == "('', '', {}, 2, 2)\n"


async def test_modules_beside_the_task_can_be_imported(sandbox: Sandbox) -> None:
    await sandbox.write_file("mine.py", b"answer = 42\n")
    assert (await sandbox.ipython("import mine; mine.answer", 10)).output == "42\n"


async def test_an_error_is_the_traceback_in_plain_text(sandbox: Sandbox) -> None:
    result = await sandbox.ipython("print('first')\ndef f():\n    return 1 / 0\nf()", 10)
    assert result.error
    assert result.output.startswith("first\nTraceback (most recent call last):\n")
    assert result.output.endswith("    return 1 / 0\nZeroDivisionError: division by zero\n")
    assert "\x1b" not in result.output


async def test_a_syntax_error(sandbox: Sandbox) -> None:
    result = await sandbox.ipython("x = = 1", 10)
    assert result.error
    assert result.output.endswith("SyntaxError: invalid syntax\n")


async def test_standard_input_is_empty(sandbox: Sandbox) -> None:
    result = await sandbox.ipython("input()", 10)
    assert result.error
    assert "EOFError" in result.output


async def test_our_python_leaves_no_trace_in_subprocesses(sandbox: Sandbox) -> None:
    code = "import os; sorted(name for name in os.environ if 'PYTHON' in name or name.startswith('LD_'))"
    assert (await sandbox.ipython(code, 10)).output == "[]\n"
    result = await sandbox.ipython(
        "import subprocess, sys; subprocess.check_output([sys.executable, '-c', 'print(1)'])", 10
    )
    assert result.output == "b'1\\n'\n"


async def test_processes_can_be_spawned(sandbox: Sandbox) -> None:
    code = "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as pool: r = pool.map(abs, [-1, -2])\nr"
    assert (await sandbox.ipython(code, 20)).output == "[1, 2]\n"


async def test_a_fork_that_falls_through_answers_once(sandbox: Sandbox) -> None:
    await sandbox.ipython("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)", 10)
    assert (await sandbox.ipython("'in step'", 10)).output == "'in step'\n"


@pytest.mark.parametrize(
    "code", ["import time; time.sleep(100)", "while True: pass", "import os\nos.system('sleep 100')"]
)
async def test_a_timeout_keeps_the_state(sandbox: Sandbox, code: str) -> None:
    await sandbox.ipython("kept = 'kept'", 10)
    result = await cut_off(sandbox.ipython, f"print('begun')\n{code}")
    assert (result.timed_out, result.error, result.restarted) == (True, True, False)
    assert result.output.startswith("begun\n")
    assert (await sandbox.ipython("kept", 10)).output == "'kept'\n"


@pytest.mark.parametrize(
    "code",
    [
        "input('?')",
        "import pdb; pdb.set_trace()",
        "!cat",
        "%reset",
        "import os; os.fork()",
        "import sys; sys.stdout.close()",
        "import sys; sys.stdout = sys.stderr = None",
        "import os; os.close(1); os.close(2)",
        "import os; os.dup2(os.open('/dev/null', 1), 1)",
        "import os; os.kill(os.getpid(), 19)",
        "import IPython; IPython.embed()",
        "import sys; sys.displayhook = None; 1",
        "raise SystemExit",
    ],
)
async def test_a_cell_that_waits_or_shuts_its_output_keeps_the_state(sandbox: Sandbox, code: str) -> None:
    await sandbox.ipython("kept = 41", 10)
    result = await sandbox.ipython(code, 10)
    assert (result.timed_out, result.restarted) == (False, False)
    result = await sandbox.ipython("print(kept)", 10)
    assert (result.output, result.restarted) == ("41\n", False)


@pytest.mark.parametrize(
    "code",
    ["import asyncio; await asyncio.Event().wait()", "%%bash\nsleep 999", "while True: print('z' * 999)", "!sleep 999"],
)
async def test_a_cell_without_end_keeps_the_state(sandbox: Sandbox, code: str) -> None:
    await sandbox.ipython("kept = 41", 10)
    result = await sandbox.ipython(code, 0.3)
    assert (result.timed_out, result.restarted) == (True, False)
    assert (await sandbox.ipython("print(kept)", 10)).output == "41\n"


@pytest.mark.parametrize(
    "code",
    [
        "import time\nwhile True:\n  try: time.sleep(9)\n  except KeyboardInterrupt: pass",
        "quit()",
        "get_ipython().ask_exit()",
        "import os; os.closerange(0, 256)",
    ],
)
async def test_a_cell_that_costs_its_process_says_so(sandbox: Sandbox, code: str) -> None:
    await sandbox.ipython("kept = 41", 10)
    assert (await sandbox.ipython(code, 1)).restarted
    assert "NameError" in (await sandbox.ipython("kept", 10)).output


async def test_a_file_called_as_a_module_that_ipython_needs_does_not_stop_its_start(sandbox: Sandbox) -> None:
    names = ("random", "token", "code", "types", "json", "IPython", "socket", "inspect", "test", "typing", "rollyard")
    for name in names:
        await sandbox.write_file(f"{name}.py", b"raise SystemExit(3)\n")
    assert (await sandbox.ipython("quit()", 10)).restarted
    result = await sandbox.ipython("print(1)\n1 / 0", 10)
    assert (result.output[:2], result.output[-17:]) == ("1\n", "division by zero\n")
    assert "SystemExit: 3" in (await sandbox.ipython("import test", 10)).output
    await sandbox.bash(f"rm -f {' '.join(f'{name}.py' for name in names)}", 10)


async def test_an_error_does_not_repeat_a_long_line(sandbox: Sandbox) -> None:
    result = await sandbox.ipython(f"open('/nonexistent/f', 'w').write('{'y' * 128_000}')", 10)
    assert result.output.endswith("No such file or directory: '/nonexistent/f'\n")
    assert "characters left out" in result.output
    assert len(result.output) < 3000


async def test_a_deaf_cell_costs_its_process(sandbox: Sandbox) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('begun')\nwhile True: pass"
    result = await cut_off(sandbox.ipython, code)
    assert (result.timed_out, result.restarted) == (True, True)
    assert "NameError" in (await sandbox.ipython("kept", 10)).output


@pytest.mark.parametrize(
    "code",
    [
        "import os; print('last'); os._exit(1)",
        "print('last'); exit()",
        "import os; print('last'); os.kill(os.getpid(), 9)",
    ],
)
async def test_the_end_of_the_process_is_reported(sandbox: Sandbox, code: str) -> None:
    result = await sandbox.ipython(code, 10)
    assert (result.output, result.restarted, result.timed_out) == ("last\n", True, False)
    again = await sandbox.ipython("'new'", 10)
    assert (again.output, again.restarted) == ("'new'\n", False)


async def test_a_process_that_dies_between_cells_is_reported(sandbox: Sandbox) -> None:
    waits = "import os, threading; go = threading.Event(); threading.Thread(target=lambda: go.wait() and os._exit(0)).start()"
    await sandbox.ipython(waits, 10)
    result = await sandbox.ipython("import time; go.set(); time.sleep(100); 'unreached'", 60)
    assert (result.restarted, result.timed_out) == (True, False)
    kernel = (await sandbox.ipython("import os; os.getpid()", 10)).output.strip()
    await sandbox.bash(f"kill -KILL {kernel}; while kill -0 {kernel} 2>/dev/null; do sleep 0.01; done", 30)
    result = await sandbox.ipython("'lost'", 10)
    assert (result.output, result.restarted) == ("'lost'\n", True)


_SEND = "import os, struct\ndef send(b, n=None): os.write(3, struct.pack('>II', n or len(b), 0) + b)\n"


@pytest.mark.parametrize(
    "code",
    [
        "os.write(3, b'\\0\\0\\0\\4\\0\\0\\0\\0junk')",
        "send(b'[1]')",
        "send(b'null')",
        "send(b'[' * 200000 + b']' * 200000)",
        """send(b'{"header": {"msg_type": "error"}, "parent_header": {"msg_id": 1}, "content": 2}'); send(b'{}')""",
        "send(b'', 0xffffffff)",
    ],
)
async def test_a_cell_that_writes_into_our_socket_costs_its_process_only(sandbox: Sandbox, code: str) -> None:
    result = await sandbox.ipython(_SEND + code, 10)
    assert result.restarted
    assert (await sandbox.ipython("1", 10)).output == "1\n"
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", (await sandbox.bash("cat /proc/1/status", 10)).output)
    assert int(peak) < 100_000  # the sandbox agent's memory has no limit


async def test_a_part_of_a_message_does_not_hold_the_sandbox(sandbox: Sandbox) -> None:
    result = await sandbox.ipython(_SEND + "import time; send(b'half', 100); time.sleep(100)", 1)
    assert (result.timed_out, result.restarted) == (True, True)
    assert (await sandbox.ipython("1", 10)).output == "1\n"


async def test_a_reply_that_a_cell_writes_itself_does_not_shift_the_next_ones(sandbox: Sandbox) -> None:
    reply = (
        """import json, time\nparent = {"msg_id": str(NUMBER)}\n"""
        """send(json.dumps({"header": {"msg_type": "execute_reply"}, "parent_header": parent, """
        """"content": {"payload": []}}).encode())\ntime.sleep(0.2); 'stale'"""
    )
    assert (await sandbox.ipython(_SEND + "NUMBER = len(In) - 1\n" + reply, 10)).output == ""
    assert (await sandbox.ipython("'fresh'", 10)).output == "'fresh'\n"


async def test_endless_output_is_bounded(sandbox: Sandbox) -> None:
    result = await sandbox.ipython("while True: print('y' * 1000)", 0.5)
    assert result.timed_out
    assert len(result.output) < 2 * (1 << 20)
    long = await sandbox.ipython("list(range(400000))", 20)
    assert len(long.output) < 2 * (1 << 20)


async def test_a_cancelled_cell_leaves_the_stream_in_step(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.ipython("import time; time.sleep(100)", 60))
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.ipython("'fresh'", 10)).output == "'fresh'\n"


async def test_bash_and_ipython_share_files_and_run_at_once(sandbox: Sandbox) -> None:
    waiting = sandbox.bash("while [ ! -s /tmp/flag ]; do sleep 0.02; done; cat /tmp/flag", 10)
    setting = sandbox.ipython("open('/tmp/flag', 'w').write('both')", 10)
    results = await asyncio.gather(waiting, setting)
    assert results[0].output == "both"
