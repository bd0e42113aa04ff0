"""A bash process that takes one command after another. Nothing that a command sets in the shell can hide its end.

How a command is passed to bash, how its end is detected, and which trap each choice avoids:

- Bash reads its lines from a pipe that has room for one write. After the line of a command we write a space, the beginning
  of the next line. Once bash has taken the space, it waits at its prompt. So the kernel tells when a command has ended, and
  no option, variable, trap, function or alias of the shell takes part.
- Bash sources the command from a file in memory. A typed command would be cut at 4,095 characters, and an open quote or
  heredoc would swallow the next typed line. A file in memory works on a full disk too. The kernel notes when the file is
  read, so we know whether a command has begun.
- Standard input, output and error are those of the sourced file only; bash takes its own back afterwards. So `exec >file`
  lasts as long as its command. Standard input is empty: a program that reads it gets an end of file. The output is the
  terminal of the call.
- Bash's own standard output and error are a pipe to us. It takes prompts, what PROMPT_COMMAND prints, what `set -x` shows of
  our lines, and messages about ended jobs. None of these reaches a result.
- The prompt is a sentinel with the exit status. If a command has set another prompt, one more line asks for the status.
- Job control stays on, so every command has a process group of its own. The group can be stopped while bash lives on.
- No read or write of the pipes blocks: a process of the task can open them too, and empty or fill them.
- After a command was stopped, the sentinel changes and is awaited. The signal may have met bash before it read the typed
  line; then bash drops the line.
"""

from __future__ import annotations

import fcntl
import os
import select
import termios
import time

from rollyard.sandbox_agent.call_terminals import CallTerminals, OpenTerminal
from rollyard.sandbox_agent.child_processes import (
    IGNORED_BY_PYTHON,
    SIGINT,
    SIGKILL,
    SIGSTOP,
    ChildProcesses,
    GroupMember,
    fork_and_execute,
    group_and_descendants,
    ignores,
    kill_family,
)
from rollyard.sandbox_agent.output_capture import OutputCapture
from rollyard.sandbox_agent.wake_flag import readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from rollyard.sandbox_agent.settings import Settings
else:
    Protocol = object

START_SECONDS = 10.0
KILL_SECONDS = 1.0
RESYNC_SECONDS = 5.0
_SCRIPT_FD = 60
"""Below 64, the first size of a process's table of descriptors: in a process with threads, making the table larger waits for
all CPUs (synchronize_rcu), which takes 10 to 30 ms."""
_EMPTY_FD = 61
"""Standard input of all commands: /dev/null, which a task can delete from /dev."""
_LINE = f" \\. /proc/self/fd/{_SCRIPT_FD} <&{_EMPTY_FD} 1<>%s 2>&1\n"
"""Runs the script. The space keeps it out of the history, the backslash passes aliases by."""
_FIRST_LINE = (
    " PS2= HISTCONTROL=ignorespace; export -n PROMPT_COMMAND PS1 PS2; BASH_ARGV0=bash; "
    "unset HISTFILE; set +o history; history -c\n"
)
_F_SETPIPE_SZ = 1031
_CHUNK = 1 << 16
_BRIEF_SECONDS = 0.001
"""A command that ends within this time costs no wake-up for its output, which is read at its end."""
_MOST_ANSWERS = 4
"""Number of prompts without a sentinel after which bash cannot tell an exit status, as with a read-only PS1."""
_MOST_SAID = 4096
"""Number of bytes that are kept of what bash itself prints. A sentinel is much shorter."""


def make_script_file() -> None:
    """Make the file from which bash sources its commands. This must be done before the system call filter is set, because
    the filter forbids memory files."""
    script = os.memfd_create("command")
    os.dup2(script, _SCRIPT_FD)
    os.close(script)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, _EMPTY_FD)
    os.close(empty)


class ShellEnded(Exception):
    """Bash has ended (by `exit`, `exec` or `set -e`, or because it was killed), or its command does not end and bash
    must be killed."""


class Owner(Protocol):
    """Calls that arrive while a command runs."""

    stops: bool
    """True once the running command is to be stopped."""

    def fileno(self) -> int: ...

    def take_call(self) -> None:
        """Take the call that makes the file descriptor readable."""


class ResidentShell:
    def __init__(self, settings: Settings, children: ChildProcesses, argv: list[str], *, is_first: bool) -> None:
        """Start bash, but do not wait until it is ready. `is_first`: no process of the task runs yet. Raises OSError."""
        self._sentinel = b""
        self._said = b""
        """Last bytes that bash itself has printed."""
        self._is_probed = False
        """True once the space after the line was written."""
        self._is_deaf = False
        """True once bash has closed the pipe of its lines."""
        self._brief: select.poll | None = None
        self.is_ready = False
        """True once bash has its limits, and has shown its first prompt."""
        self.forget_command()
        env = {name: value for name, value in settings.env.items() if name not in ("PS1", "PS2", "PROMPT_COMMAND")}
        try:
            os.chdir(settings.workdir)  # bash starts in the folder of this process
        except OSError:
            os.chdir("/")
        self._calls = CallTerminals()
        # The mode is set before bash starts: after a job is killed, bash restores the mode from the time of its start.
        self._controlling = OpenTerminal()
        """The session's terminal, for job control and for programs that open /dev/tty."""
        lines, self._lines = os.pipe()
        self._own, own = os.pipe()
        fcntl.fcntl(self._lines, _F_SETPIPE_SZ, 4096)  # one page, so one write
        try:
            self._child = children.start(
                lambda: _spawn_bash(self._controlling.name, lines, own, argv, env, is_first=is_first)
            )
        except OSError:
            self._close()
            raise
        finally:
            self._controlling.release()
            os.close(lines)
            os.close(own)
        self._child.resumes = True
        os.set_blocking(self._lines, False)
        os.set_blocking(self._own, False)
        self._type_line(_FIRST_LINE)

    def get_ready(self, settings: Settings, owner: Owner) -> None:
        """Raises RuntimeError if bash has ended, or shows no prompt."""
        output, deadline = OutputCapture(), time.monotonic() + START_SECONDS
        try:
            settings.confine(self._child.pid)
            if self.until_prompt(output, deadline, owner, stops=False):
                self.set_prompt(owner)
                self.is_ready = True
                return
        except (ShellEnded, ProcessLookupError, PermissionError):
            pass
        self.end()
        said = self._said + output.pop()
        raise RuntimeError(f"bash did not start; it said: {said.decode(errors='replace')!r}")

    def type(self, command: bytes) -> None:
        """Pass a command to bash. Raises OSError if there is no terminal for its output."""
        terminal = self._calls.begin()
        self._controlling.reset()
        self.forget_command()
        os.pwrite(_SCRIPT_FD, command, 0)
        os.utime(_SCRIPT_FD, (0, 0))
        self._type_line(_LINE % terminal)

    def has_read_command(self) -> bool:
        return os.fstat(_SCRIPT_FD).st_atime != 0

    def forget_command(self) -> None:
        """If bash has not yet read the typed line, bash will run nothing."""
        os.ftruncate(_SCRIPT_FD, 0)

    def _type_line(self, line: str) -> None:
        self._said, self._is_probed = b"", False
        try:
            os.write(self._lines, line.encode())
        except OSError:
            pass

    def until_prompt(self, capture: OutputCapture, deadline: float, owner: Owner, *, stops: bool = True) -> bool:
        """Feed `capture` until bash waits for its next line; return False at the deadline. With `stops`, return False also
        once `owner.stops`.

        Raises ShellEnded.
        """
        always, brief = [self._child.exited, owner.fileno()], time.monotonic() + _BRIEF_SECONDS
        while True:
            if time.monotonic() < brief < deadline and not self._is_deaf:
                ready = self._wait_briefly(owner)
                if not ready:
                    continue
            else:
                ready = readable([*always, *self._outputs()], deadline, None if self._is_deaf else self._lines)
            self._read(ready, capture)
            if self._child.exited in ready:
                self.finish(capture)
                raise ShellEnded
            if self._lines in ready and self._is_at_prompt():
                self.finish(capture)
                return True
            if owner.fileno() in ready:
                owner.take_call()
            if not ready or time.monotonic() > deadline or (stops and owner.stops):
                return False

    def _wait_briefly(self, owner: Owner) -> set[int]:
        if self._brief is None:
            self._brief = select.poll()
            self._brief.register(self._child.exited, select.POLLIN)
            self._brief.register(owner.fileno(), select.POLLIN)
            self._brief.register(self._lines, select.POLLOUT)
        return {fd for fd, _ in self._brief.poll(_BRIEF_SECONDS * 1000)}

    def _is_at_prompt(self) -> bool:
        """Decide what it means that the pipe of lines takes bytes. The first time bash has taken its line. If bytes are left
        in the pipe, nobody can read them: bash has become another program (`exec`)."""
        if not self._is_probed:
            try:
                os.write(self._lines, b" ")
                self._is_probed = True
            except OSError:
                self._is_deaf = True
            return False
        left = bytearray(4)
        fcntl.ioctl(self._lines, termios.FIONREAD, left)
        self._is_deaf = any(left)
        return not self._is_deaf

    def _read(self, ready: set[int], capture: OutputCapture) -> None:
        if self._own in ready:
            self._read_own()
        if self._controlling.fd in ready:
            self._controlling.read(capture)
        self._calls.read(ready, capture)

    def _read_own(self) -> int:
        try:
            chunk = os.read(self._own, _CHUNK)
        except OSError:  # a process of the task has read it
            return 0
        self._said = (self._said + chunk)[-_MOST_SAID:]
        return len(chunk)

    def finish(self, capture: OutputCapture) -> None:
        """Read all that bash and the ended processes of its command have printed. What comes later is dropped."""
        self._controlling.read_available(capture)
        self._calls.finish(capture)
        self._read_own()

    def status(self, owner: Owner) -> int:
        """Return the exit status of the command that has ended. Raises ShellEnded if bash does not tell."""
        told = self._told()
        if told is None:
            return self.set_prompt(owner)
        status, logout = told
        if logout:
            # TMOUT ends a bash that waits long for its next line.
            self._type_line(" TMOUT=\n")
            self.until_prompt(OutputCapture(), time.monotonic() + RESYNC_SECONDS, owner, stops=False)
        return status

    def _told(self) -> tuple[int, bytes] | None:
        """Return the exit status and the value of TMOUT in the last sentinel; None if there is none."""
        line = self._said.rpartition(self._sentinel)[2] if self._sentinel in self._said else b""
        status, space, logout = line.partition(b";")[0].partition(b" ")
        return (int(status) & 0xFF, logout) if space and status.isdigit() and len(status) <= 3 else None

    def set_prompt(self, owner: Owner) -> int:
        """Set a new sentinel; return the exit status of the command before. Lines that were typed earlier have no effect
        any more. Raises ShellEnded if bash does not answer."""
        deadline = time.monotonic() + RESYNC_SECONDS
        asking = " __status=$?; "
        answers = 0
        while time.monotonic() < deadline and answers < _MOST_ANSWERS:
            nonce = os.urandom(8).hex()
            self._sentinel = nonce.encode() + b" "
            self._type_line(f'{asking}PS1="{nonce} ${{__status}} ;"\n')
            # Repeated, because bash drops a line that it reads while a signal is pending.
            step = min(deadline, time.monotonic() + 0.25)
            if not self.until_prompt(OutputCapture(), step, owner, stops=False):
                continue
            if (told := self._told()) is not None:
                self._type_line(f" PS1='{nonce} $? ${{TMOUT-}};'\n")
                self.until_prompt(OutputCapture(), deadline, owner, stops=False)
                return told[0]
            answers += 1
            # PROMPT_COMMAND may set a prompt of its own. With line editing (`set -o vi`) bash would read lines in advance.
            asking = " \\set +o vi +o emacs; \\unset -v PROMPT_COMMAND; "
        raise ShellEnded

    def ignores_interrupts(self) -> bool:
        return ignores(self._child.pid, SIGINT)

    def foreground(self) -> list[GroupMember]:
        """Return the processes of the running command, without bash itself and its background jobs."""
        try:
            group = os.tcgetpgrp(self._controlling.fd)
        except OSError:
            return []
        return group_and_descendants(group, self._child.pid) if group > 0 else []

    def interrupt(self) -> None:
        """Interrupt bash, then the command in the foreground. Bash acts once the command has ended: it gives up the rest of
        its line. In the other order it could run the rest."""
        try:
            os.killpg(self._child.pid, SIGINT)
            group = os.tcgetpgrp(self._controlling.fd)
            if group > 0 and group != self._child.pid:
                os.killpg(group, SIGINT)
        except OSError:
            pass

    def _outputs(self) -> list[int]:
        self._calls.hold()
        return [self._own, *self.idle_fds()]

    def freeze(self) -> None:
        """Stop bash for good, before it is killed."""
        self._child.resumes = False
        if self._child.status is None:
            try:
                os.kill(self._child.pid, SIGSTOP)
            except OSError:
                pass

    def drain(self) -> None:
        """Read what was printed between calls, and drop it. Raises ShellEnded."""
        self._controlling.read(None)
        self._calls.drain()
        if self._child.status is not None:
            raise ShellEnded

    def idle_fds(self) -> list[int]:
        """File descriptors that become readable when a program prints."""
        return [self._controlling.fd, *self._calls.fds()]

    def end(self) -> int | None:
        """Kill all remaining processes of bash's session; return bash's exit code, or None if bash had not ended
        before."""
        self._wait(0.2)
        status = self._child.status
        self._child.resumes = False
        # Stop the processes before killing them: a running fork bomb starts processes faster than they are killed.
        deadline = time.monotonic() + KILL_SECONDS
        while kill_family(self._child.pid, SIGSTOP) and time.monotonic() < deadline:
            kill_family(self._child.pid, SIGKILL)
        self._child.kill()  # if it has no session of its own yet
        self._wait(KILL_SECONDS)
        self._read_own()
        self._close()
        self._child.close()
        return status

    def _close(self) -> None:
        os.close(self._lines)
        os.close(self._own)
        self._controlling.close()
        self._calls.close()

    def _wait(self, seconds: float) -> None:
        readable([self._child.exited], time.monotonic() + seconds)


def _spawn_bash(terminal: str, lines: int, own: int, argv: list[str], env: Mapping[str, str], *, is_first: bool) -> int:
    """Start bash in a session of its own with this terminal; return its process id. `lines` and `own`: pipes that it reads
    and writes. All other file descriptors of this process end with the program's start."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 1, terminal, os.O_RDWR, 0),  # the first terminal of a new session controls it
        (os.POSIX_SPAWN_DUP2, lines, 0),
        (os.POSIX_SPAWN_DUP2, own, 1),
        (os.POSIX_SPAWN_DUP2, own, 2),
    ]
    if not is_first:
        return fork_and_execute(argv, env, actions, IGNORED_BY_PYTHON)
    return os.posix_spawn(argv[0], argv, env, file_actions=actions, setsid=True, setsigdef=IGNORED_BY_PYTHON)
