"""Bash in a sandbox: its state, and every trap of driving a shell."""

from __future__ import annotations

import asyncio
import base64
import signal
import time

import pytest

from rollyard.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.support.cut_off import cut_off

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20)
KILLER = """
import os
if os.fork():
    os._exit(0)
os.setsid()
number = 9
while True:
    if number == 9 and os.path.exists("/tmp/stop"):
        number = 19
    for one in os.listdir("/proc"):
        if one.isdigit() and int(one) not in (1, os.getpid()):
            try:
                os.kill(int(one), number)
            except OSError:
                pass
"""


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    """The tools are the same in every runtime; test_runtimes.py tries them in each."""
    return find_runtime("bubblewrap")


async def test_output_and_exit_code(sandbox: Sandbox) -> None:
    result = await sandbox.bash("echo out; echo err >&2; (exit 3)", 10)
    assert (result.output, result.exit_code) == ("out\nerr\n", 3)
    assert not result.timed_out
    assert not result.restarted


async def test_state_is_kept(sandbox: Sandbox) -> None:
    await sandbox.bash("mkdir -p /tmp/d && cd /tmp/d && x=5; f() { echo f$1; }; export E=env", 10)
    result = await sandbox.bash('pwd; echo $x; f 1; sh -c "echo \\$E"; cd /workspace', 10)
    assert result.output == "/tmp/d\n5\nf1\nenv\n"


async def test_a_pipeline_ends_with_its_reader(sandbox: Sandbox) -> None:
    result = await sandbox.bash('yes | head -n 1; echo "${PIPESTATUS[*]}"', 10)
    assert result.output == "y\n141 0\n"


async def test_files_have_the_usual_modes(sandbox: Sandbox) -> None:
    assert (await sandbox.bash("umask; echo >/tmp/modes; stat -c %a /tmp/modes", 10)).output == "0022\n644\n"


async def test_the_last_status_is_seen_by_the_next_command(sandbox: Sandbox) -> None:
    await sandbox.bash("(exit 7)", 10)
    assert (await sandbox.bash("echo $?", 10)).output == "7\n"


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("cat <<'END'\na 'b\n\"c\nEND", "a 'b\n\"c\n"),
        ("printf 'a\\r\\nb\\r\\n'", "a\r\nb\r\n"),
        ("printf 'no newline'", "no newline"),
        ("echo 'ünïcödé ✓'", "ünïcödé ✓\n"),
        ("printf '\\377\\376'", "��"),
        ("printf '\\036'; echo x", "\x1ex\n"),
        ("cat; echo after", "after\n"),
        ('read line; echo "[$line]"', "[]\n"),
        ("python3 -c 'import sys; print(repr(sys.stdin.read()))'", "''\n"),
        ("echo !$ !! '!x'", "!$ !! !x\n"),
        ("true && \\\n echo continued", "continued\n"),
        ("echo a \\", "a \\\n"),
        ("echo a # a comment", "a\n"),
        ("python3 - <<'X'\nimport sys; print(repr(sys.stdin.read()))\nX", "''\n"),
        ("printf 'a\\360b\\n'", "a�b\n"),
        ("printf 'x\\0y\\n'", "x\0y\n"),
        ("printf '\\033]0;t\\007\\033[2J\\033c\\r50%%\\n'", "\x1b]0;t\x07\x1b[2J\x1bc\r50%\n"),
        ("# only a comment", ""),
        ("", ""),
    ],
)
async def test_what_goes_in_and_comes_out(sandbox: Sandbox, command: str, output: str) -> None:
    result = await sandbox.bash(command, 10)
    assert (result.output, result.exit_code, result.restarted) == (output, 0, False)


async def test_a_line_longer_than_a_terminal_takes(sandbox: Sandbox) -> None:
    """A terminal keeps 4,095 bytes of a line, and drops the rest."""
    for length in (4094, 4095, 4096, 4097, 4098, 9000, 70_000, 300_000):
        result = await sandbox.bash(f"printf %s '{'x' * length}' | wc -c", 10)
        assert (result.output, result.restarted) == (f"{length}\n", False)
    text = base64.b64encode(bytes(15_000)).decode()
    assert (await sandbox.bash(f"base64 -d <<'END' | wc -c\n{text}\nEND", 10)).output == "15000\n"
    assert (await sandbox.bash(f"read v <<< {'x' * 6000}; echo ${{#v}}", 10)).output == "6000\n"


async def test_a_long_line_that_comes_while_another_command_runs_is_whole(sandbox: Sandbox) -> None:
    await sandbox.bash("rm -f /tmp/go", 10)
    running = asyncio.create_task(sandbox.bash("until [ -e /tmp/go ]; do sleep 0.01; done; echo went", 60))
    waiting = asyncio.create_task(sandbox.bash(f"printf %s '{'x' * 9000}' | wc -c", 60))
    await sandbox.write_file("/tmp/go", b"")
    assert [(await call).output for call in (running, waiting)] == ["went\n", "9000\n"]


@pytest.mark.parametrize(
    "command",
    [
        "echo 'open",
        'echo "open',
        "if true; then",
        "cat <<END\nx",
        "cat <<END\nx\n  END",
        "cat <<END\nx\nEND ",
        "cat <<END\nx\nEND\r",
        "f() {",
        "echo $(",
        "((",
        ")",
        "fi",
    ],
)
async def test_an_unfinished_command_is_an_error_and_no_hang(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.bash(command, 10)
    assert not result.timed_out
    assert (await sandbox.bash("echo next", 10)).output == "next\n"


async def test_characters_stay_whole_over_the_borders_of_reads(sandbox: Sandbox) -> None:
    result = await sandbox.bash("python3 -c \"print('é' * 70001)\"", 10)
    assert result.output == "é" * 70001 + "\n"


async def test_a_nul_byte_is_refused(sandbox: Sandbox) -> None:
    result = await sandbox.bash("echo a\0b", 10)
    assert result.exit_code == 2
    assert "NUL" in result.output


async def test_a_lone_surrogate_is_no_exception(sandbox: Sandbox) -> None:
    assert (await sandbox.bash("echo \ud800", 10)).output == "?\n"


async def test_a_background_job_does_not_hold_the_call(sandbox: Sandbox) -> None:
    result = await sandbox.bash("sleep 100 &", 10)
    assert not result.timed_out
    assert (await sandbox.bash("kill %1; wait %1 2>/dev/null; echo ended", 10)).output.endswith("ended\n")


async def test_a_background_job_that_prints_without_end_does_not_hold_the_call(sandbox: Sandbox) -> None:
    await sandbox.bash("yes &", 10)
    result = await sandbox.bash("kill %1; wait; echo ended", 10)
    assert (result.timed_out, "ended\n" in result.output) == (False, True)


async def test_other_calls_are_answered_while_a_command_runs(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.bash("until [ -e /tmp/go ]; do sleep 0.01; done; echo went", 60))
    waiting = asyncio.create_task(sandbox.bash("echo next", 60))
    await sandbox.write_file("/tmp/go", b"")
    assert [(await call).output for call in (running, waiting)] == ["went\n", "next\n"]


async def test_late_text_of_a_background_job_lands_in_no_later_call(sandbox: Sandbox) -> None:
    printing = "while :; do echo LATE; touch /tmp/printed; sleep 0.01; done"
    await sandbox.bash(
        f"({printing}) & setsid sh -c '{printing}' & disown; seq 100000 > /tmp/much; (cat /tmp/much) &", 10
    )
    result = await sandbox.bash(
        "rm -f /tmp/printed; until [ -e /tmp/printed ]; do sleep 0.01; done; echo only this", 10
    )
    assert (result.output[-10:], "LATE" in result.output, "100000" in result.output) == (
        "only this\n"[-10:],
        False,
        False,
    )
    await sandbox.bash("kill %1; pkill -f LATE", 10)


async def test_more_background_jobs_than_terminals_do_not_stop_the_shell(sandbox: Sandbox) -> None:
    for number in range(30):
        assert (await sandbox.bash(f"sleep 300 & echo {number}", 10)).output == f"{number}\n"
    await sandbox.bash("kill $(jobs -p); wait 2>/dev/null", 10)
    result = await sandbox.bash("echo on; ls /dev/pts | wc -l", 10)
    assert result.output.split()[0] == "on"
    assert int(result.output.split()[1]) < 6


async def test_redirecting_the_shell_lasts_as_long_as_its_command(sandbox: Sandbox) -> None:
    assert (await sandbox.bash("exec >/tmp/log 2>&1 </dev/full; echo hidden", 10)).output == ""
    assert (await sandbox.bash("cat /tmp/log; cat", 10)).output == "hidden\n"


async def test_tracing_shows_the_commands_only(sandbox: Sandbox) -> None:
    result = await sandbox.bash("set -x; echo traced", 10)
    await sandbox.bash("set +x", 10)
    assert result.output == "++ echo traced\ntraced\n"


async def test_a_changed_terminal_is_put_right(sandbox: Sandbox) -> None:
    await sandbox.bash("stty echo onlcr opost raw </dev/tty", 10)
    assert (await sandbox.bash("echo plain", 10)).output == "plain\n"


SETTINGS = r"""
PS1='(v) \u@\h '; (exit 7)
echo 'PS1="(v) ${PS1:-}"' >/tmp/activate; . /tmp/activate; (exit 7)
unset PS1 PS2; (exit 7)
PROMPT_COMMAND='history -a'; (exit 7)
PROMPT_COMMAND=false; (exit 7)
PROMPT_COMMAND='echo prompt; echo prompt >&2'; (exit 7)
PROMPT_COMMAND='PS1="custom$ "'; (exit 7)
readonly PROMPT_COMMAND; (exit 7)
shopt -u promptvars; (exit 7)
set -o vi; (exit 7)
set -o emacs; (exit 7)
IFS=1; (exit 7)
IFS=7; (exit 7)
printf() { false; }; builtin() { false; }; command() { false; }; eval() { false; }; (exit 7)
alias printf=false .=false; (exit 7)
unset $(compgen -v) 2>/dev/null; (exit 7)
set -euo pipefail; set +e; (exit 7)
shopt -s extdebug failglob nullglob; set -f -C -k -T; (exit 7)
trap 'echo DEBUG >>/tmp/traps' DEBUG; trap 'echo ERR >>/tmp/traps' ERR; trap 'echo EXIT' EXIT; (exit 7)
set -o posix; (exit 7)
set -o history; set -o histexpand; (exit 7)
exec >/dev/null 2>&1; (exit 7)
exec 0</dev/null; (exit 7)
exec 2>&-; (exit 7)
kill -STOP $$; (exit 7)
suspend -f; (exit 7)
stty raw -echo </dev/tty; stty raw echo <&1; (exit 7)
PATH=; (exit 7)
ulimit -f 0; (exit 7)
set +m; (exit 7)
export BASH_ENV=/no ENV=/no POSIXLY_CORRECT=1 LC_ALL=C; (exit 7)
"""


@pytest.mark.parametrize("setting", SETTINGS.strip().split("\n"))
async def test_a_setting_of_the_shell_reaches_no_result_and_no_later_call(sandbox: Sandbox, setting: str) -> None:
    result = await sandbox.bash(f"kept=yes; {setting}", 10)
    assert (result.output, result.exit_code, result.timed_out, result.restarted) == ("", 7, False, False)
    result = await sandbox.bash("echo alive $kept; (exit 3)", 10)
    assert (result.output.split()[0], result.exit_code, result.restarted) == ("alive", 3, False)
    assert (await sandbox.bash("trap - DEBUG ERR EXIT; exit", 10)).restarted


@pytest.mark.parametrize(
    "setting",
    [
        "readonly PS1=x",
        "PROMPT_COMMAND=cat",
        "PROMPT_COMMAND='exec 2>&-'",
        "PROMPT_COMMAND='exec <&-'",
        "set -t",
        "exec true",
    ],
)
async def test_a_shell_whose_settings_hide_the_exit_code_is_replaced_at_once(sandbox: Sandbox, setting: str) -> None:
    result = await sandbox.bash(setting, 10)
    assert (result.output, result.timed_out, result.restarted) == ("", False, True)
    result = await sandbox.bash("echo alive", 10)
    assert (result.output, result.exit_code, result.restarted) == ("alive\n", 0, False)


async def test_a_timeout_of_the_shell_itself_does_not_end_it_between_calls(sandbox: Sandbox) -> None:
    await sandbox.bash("TMOUT=1; kept=yes", 10)
    await asyncio.sleep(1.2)
    result = await sandbox.bash("echo $kept", 10)
    assert (result.output, result.restarted) == ("yes\n", False)
    await sandbox.bash("readonly TMOUT=1", 10)
    await asyncio.sleep(1.2)
    result = await sandbox.bash("echo alive", 10)
    assert (result.output, result.exit_code, result.restarted) == ("alive\n", 0, True)


async def test_the_history_has_no_internal_lines(sandbox: Sandbox) -> None:
    await sandbox.bash("echo one", 10)
    assert (await sandbox.bash("history; set -o history", 10)).output == ""
    await sandbox.bash("PS1=mine", 10)
    assert (await sandbox.bash("history; set +o history", 10)).output == ""


async def test_stdout_is_a_terminal_and_nothing_pages(sandbox: Sandbox) -> None:
    assert (await sandbox.bash("test -t 1; echo $?; echo $PAGER $TERM", 10)).output == "0\ncat dumb\n"


async def test_a_timeout_keeps_the_shell(sandbox: Sandbox) -> None:
    await sandbox.bash("kept=yes", 10)
    result = await cut_off(sandbox.bash, "echo begun; sleep 100")
    assert (result.output.rstrip(), result.exit_code, result.timed_out, result.restarted) == (
        "begun",
        None,
        True,
        False,
    )
    assert (await sandbox.bash("echo $kept", 10)).output == "yes\n"


@pytest.mark.parametrize(
    "command", ["while :; do :; done", "while true; do sleep 0.05; done", "wait_for() { read -r </dev/tty; }; wait_for"]
)
async def test_loops_and_terminal_readers_are_stopped(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.bash(command, 0.2)
    assert (result.timed_out, result.restarted) == (True, False)


async def test_a_command_deaf_to_interrupts_is_killed_alone(sandbox: Sandbox) -> None:
    await sandbox.bash("kept=still", 10)
    deaf = "python3 -c 'import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(100)'"
    result = await sandbox.bash(deaf, 0.3)
    assert (result.timed_out, result.restarted) == (True, False)
    assert (await sandbox.bash("echo $kept", 10)).output == "still\n"


IGNORE = "import signal, time; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN)"
POLITE = "import time\ntry: time.sleep(99)\nexcept KeyboardInterrupt: print(1)"


@pytest.mark.parametrize(
    "command",
    [
        "sleep 99",
        f"python3 -c '{POLITE}'",
        f"python3 -c '{IGNORE}; time.sleep(99)'",
        f"found=$(python3 -c '{IGNORE}; time.sleep(99)')",
        "bash -c 'trap : INT; sleep 99; sleep 99'",
        "sleep 99 | cat",
        "for i in 1 2 3; do sleep 99; touch /tmp/late; done",
        "eval 'sleep 99'",
        "set +m; sleep 99",
        "trap 'echo trapped' INT; sleep 99",
        "trap 'echo trapped' TERM 2; sleep 99",
        "setsid -w sh -c 'trap : INT; sleep 99; touch /tmp/late'",
        "trap '' INT; sleep 99",
        "exec sleep 99",
    ],
)
async def test_after_its_limit_nothing_of_a_command_line_still_runs(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.bash(f"rm -f /tmp/late; echo begun; {command}; echo X; touch /tmp/late", 0.3)
    assert (result.timed_out, result.exit_code, "X" in result.output) == (True, None, False)
    result = await sandbox.bash("ls /tmp/late; ps -eo args= | grep -E '^sleep|SIG_IG[N]'; set -m; echo alive", 10)
    assert result.output == "ls: cannot access '/tmp/late': No such file or directory\nalive\n"


@pytest.mark.parametrize("trap", ["", "trap : INT; "])
async def test_the_limit_ends_what_a_command_started_in_a_session_of_its_own(sandbox: Sandbox, trap: str) -> None:
    beat = f"{trap}rm -f /tmp/beats; echo x >/tmp/beats; echo begun; while :; do echo x >>/tmp/beats; sleep 0.01; done"
    start = f'subprocess.run(["sh", "-c", "{beat}"], start_new_session=True)'
    result = await cut_off(sandbox.bash, f"python3 -c 'import subprocess; {start}'; echo X")
    assert (result.timed_out, result.restarted) == (True, False)
    result = await sandbox.bash("wc -l </tmp/beats; sleep 0.3; wc -l </tmp/beats", 10)
    assert len(set(result.output.split())) == 1


async def test_a_deaf_shell_is_replaced_and_says_so(sandbox: Sandbox) -> None:
    result = await cut_off(sandbox.bash, "trap '' INT; echo begun; while :; do :; done")
    assert (result.timed_out, result.restarted, result.exit_code) == (True, True, None)
    assert (await sandbox.bash("pwd", 10)).output == "/workspace\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("echo bye; exit 3", 3),
        ("exec sh -c 'echo bye; exit 4'", 4),
        ("set -e; echo bye; false", 1),
        ("echo bye; kill -9 $$", -9),
    ],
)
async def test_the_end_of_the_shell_is_reported(sandbox: Sandbox, command: str, code: int) -> None:
    result = await sandbox.bash(command, 10)
    assert (result.output.rstrip(), result.exit_code, result.restarted) == ("bye", code, True)
    again = await sandbox.bash("echo new", 10)
    assert (again.output, again.restarted) == ("new\n", False)


async def test_a_shell_that_cannot_read_its_command_is_replaced_and_the_command_runs(sandbox: Sandbox) -> None:
    for setting in ("exec 60>&-", "exec 61<&-", ".() { :; }", "enable -n .", "trap 'exit 9' DEBUG"):
        await sandbox.bash(f"echo set; {setting}", 10)
        result = await sandbox.bash("echo new; (exit 3)", 10)
        assert (setting, result.output, result.exit_code, result.restarted) == (setting, "new\n", 3, True)
        assert not (await sandbox.bash("echo on", 10)).restarted


FORGE = """
nonce=$(grep -oE '[0-9a-f]{16}' <<<"$PS1" | head -n 1)
for fd in /proc/$$/fd/*; do [ -p $fd ] && timeout 1 printf '%s' "$nonce END" >$fd; done 2>/dev/null
"""
"""Writes the end of a command into all pipes of bash, those for its lines too."""


@pytest.mark.parametrize("end", ["0 ;", "0 1;", "abc ;", "9999999999999999999999 ;", ""])
async def test_a_command_that_writes_the_end_of_a_command_ends_all_the_same(sandbox: Sandbox, end: str) -> None:
    result = await sandbox.bash(FORGE.replace("END", end) + "sleep 0.05; echo late; (exit 3)", 10)
    assert (result.output, result.exit_code, result.timed_out) == ("late\n", 3, False)
    result = await sandbox.bash("echo in step; (exit 4)", 10)
    assert (result.output, result.exit_code) == ("in step\n", 4)


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(
            "for i in 1 2 3 4; do for f in /proc/$$/fd/*; do [ -p $f ] && yes >$f & done; done; true",
            marks=pytest.mark.long,
        ),  # fills bash's pipes
        pytest.param(
            "for i in 1 2; do for f in /proc/$$/fd/*; do [ -p $f ] && cat $f >/dev/null & done; done; true",
            marks=pytest.mark.long,
        ),  # empties them
        "for i in 1 2; do cat /dev/zero >/proc/$$/fd/0 & done; sleep 0.1",  # fills the pipe of lines
    ],
)
async def test_pipes_in_the_hands_of_the_task_do_not_hold_the_sandbox(sandbox: Sandbox, attack: str) -> None:
    await sandbox.bash(attack, 0.5)
    await sandbox.bash("echo perhaps", 0.5)
    await sandbox.bash("kill -9 -1", 1)  # with it the processes of the attack
    await sandbox.bash("exit", 1)
    assert (await sandbox.bash("echo works", 10)).output.endswith("works\n")


async def test_killing_everything_inside_spares_the_sandbox(sandbox: Sandbox) -> None:
    result = await sandbox.bash("kill -9 -1; kill -STOP 1; kill -9 1", 10)
    assert not result.timed_out
    await sandbox.bash("kill -9 $$", 10)
    assert (await sandbox.bash("echo alive", 10)).output == "alive\n"


async def test_endless_output_is_bounded(sandbox: Sandbox) -> None:
    result = await cut_off(sandbox.bash, "echo first; yes", "bytes left out]")
    assert result.timed_out
    assert result.output.startswith("first\ny\n")
    assert len(result.output) < (1 << 20) + 100


async def test_the_tail_of_long_output_is_kept(sandbox: Sandbox) -> None:
    result = await sandbox.bash("seq 1000000; echo last", 30)
    assert result.exit_code == 0
    assert result.output.startswith("1\n2\n")
    assert result.output.endswith("999999\n1000000\nlast\n")


async def test_a_cancelled_call_leaves_the_stream_in_step(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.bash("echo stale; sleep 100", 60))
    while (await sandbox.edit("view", "/proc/1/comm")).output == "":
        pass
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    result = await sandbox.bash("echo fresh", 10)
    assert result.output == "fresh\n"


async def test_a_call_cancelled_at_any_moment_leaves_the_stream_in_step(sandbox: Sandbox) -> None:
    """A signal to a bash that has not read the command yet, or has just ended it, makes it print one prompt more."""
    for number in range(100):
        running = asyncio.create_task(sandbox.bash("echo stale; sleep 0.001", 60))
        due = time.monotonic() + number % 50 * 0.0001
        await asyncio.sleep(0)
        while time.monotonic() < due:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await sandbox.bash(f"echo {number}", 10)).output == f"{number}\n"


async def test_calls_at_once_take_turns(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.bash(f"echo {n}", 10) for n in range(20)))
    assert [result.output for result in results] == [f"{n}\n" for n in range(20)]


async def test_a_full_disk_does_not_stop_the_shell(sandbox: Sandbox) -> None:
    await sandbox.bash(
        "cd /workspace; head -c 1G /dev/zero >a; head -c 1G /dev/zero >b; head -c 1G /dev/zero >/tmp/c", 30
    )
    assert (await sandbox.bash("echo works; rm -f a b /tmp/c", 10)).output == "works\n"


async def test_orphans_are_reaped(sandbox: Sandbox) -> None:
    ended = "while ps -eo args= | grep -q '[s]leep 0.0123'; do sleep 0.01; done"
    zombies = "while ps -eo stat= | grep -q Z; do sleep 0.01; done"
    result = await sandbox.bash(f"for i in 1 2 3 4 5; do (sleep 0.0123 & ); done; {ended}; {zombies}", 30)
    assert (result.exit_code, result.timed_out) == (0, False)


async def test_a_node_agent_begun_in_the_background_can_interrupt_all_the_same(sandboxes: SandboxFactory) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as `command &` in a script hands it down
    try:
        async with await sandboxes.start(SandboxSpec(None, LIMITS)) as sandbox:
            result = await sandbox.bash("while :; do :; done", 0.2)
            assert (result.timed_out, result.restarted) == (True, False)
            assert (await sandbox.ipython("while True: pass", 0.2)).timed_out
            assert (await sandbox.ipython("1 + 1", 10)).output.strip() == "2"
    finally:
        signal.signal(signal.SIGINT, before)


async def test_a_task_that_kills_each_new_bash_and_ipython_gets_results(
    sandboxes: SandboxFactory, spec: SandboxSpec
) -> None:
    """The sandbox counts as lost only if the task has no part in it: a lost one is no failure of the policy."""
    async with await sandboxes.start(spec) as sandbox:
        await sandbox.prepare(["bash", "ipython"])
        await sandbox.write_file("killer.py", KILLER.encode())
        await sandbox.bash("python3 killer.py; sleep 60", 60)
        for _ in range(10):
            assert (await sandbox.bash("sleep 60", 60)).restarted
            assert (await sandbox.ipython("import time; time.sleep(60)", 60)).restarted


@pytest.mark.long
async def test_a_task_that_stops_each_new_bash_and_ipython_gets_results(
    sandboxes: SandboxFactory, spec: SandboxSpec
) -> None:
    async with await sandboxes.start(spec) as sandbox:
        await sandbox.prepare(["bash", "ipython"])
        await sandbox.write_file("killer.py", KILLER.encode())
        await sandbox.bash("python3 killer.py; sleep 60", 60)
        await sandbox.write_file("/tmp/stop", b"")
        hi, two = await sandbox.bash("echo hi", 1), await sandbox.ipython("1 + 1", 1)
        assert hi.restarted or hi.output == "hi\n"
        assert two.restarted or two.output == "2\n"


async def test_a_task_that_leaves_no_terminal_for_the_next_bash_gets_results(
    sandboxes: SandboxFactory, spec: SandboxSpec
) -> None:
    hold = "import os, time; held = []\ntry:\n  while True: held.append(os.openpty())\nexcept OSError: print(1, flush=True)"
    async with await sandboxes.start(spec) as sandbox:
        held = await sandbox.bash(
            f"setsid python3 -c '{hold}; time.sleep(600)' > held & until [ -s held ]; do sleep 0.05; done", 60
        )
        assert held.exit_code == 0
        assert (await sandbox.bash("echo on", 60)).output == "on\n"
        await sandbox.bash("exit", 60)
        assert "bash: " in (await sandbox.bash("echo hi", 60)).output
