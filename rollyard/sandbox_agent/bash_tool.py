"""A resident bash on a pseudo-terminal. Its directory, variables and background jobs last from call to call.

How a command is passed to bash, how its end is detected, and which trap each choice avoids:

- Bash sources the command from a file in memory. A typed command would be cut at 4,095 characters, and an open quote or
  heredoc would swallow the next typed line. A file in memory works on a full disk too.
- Standard input of the command is /dev/null. So a program that reads standard input gets an end of file, and not
  the next command.
- Bash reads its lines from a pipe, and the terminal is for output only. A terminal passes bytes on in a thread of the kernel,
  which must be woken for each line and is late on a busy machine.
- Before its next prompt bash prints a sentinel with the exit status. The sentinel has a pipe of its own, so that `exec >file`
  cannot redirect it. The printing command's stderr goes to /dev/null, so that `set -x` does not show this command. What
  bash and ended programs printed before is then in the terminal, and a read returns it.
- Job control stays on, so every command has a process group of its own. The group can be stopped while bash lives on.
- Each line has a number, which the sentinel repeats. A sentinel with another number is left out: a process of the task can
  write the sentinel of a command that still runs, and the real one follows later.
- No read or write of the pipes blocks: a process of the task can open them too, and empty or fill them.
- After a command was stopped, the sentinel changes. The signal may have met bash before it read the typed line, or after
  the command's end. Then bash prints one prompt more than lines were typed, and each later call would get the result of
  the call before it.
"""

from __future__ import annotations

import os
import termios
import time

from rollyard.sandbox_agent.child_processes import (
    IGNORED_BY_PYTHON,
    SIGINT,
    SIGKILL,
    SIGSTOP,
    ChildProcesses,
    fork_and_execute,
    kill_family,
)
from rollyard.sandbox_agent.output_capture import OutputCapture
from rollyard.sandbox_agent.own_program import find_program
from rollyard.sandbox_agent.wake_flag import readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from rollyard.sandbox_agent.settings import Settings
else:
    Protocol = object

START_SECONDS = 10.0
INTERRUPT_SECONDS = 1.0
KILL_SECONDS = 1.0
RESYNC_SECONDS = 5.0
_SCRIPT_FD = 60
"""Below 64, the first size of a process's table of descriptors: in a process with threads, making the table larger waits for
all CPUs (synchronize_rcu), which takes 10 to 30 ms."""
_LINE = f" . /dev/fd/{_SCRIPT_FD} </dev/null${{BASH_VERSINFO[__call=%d,0]:+}}\n"
"""Runs the script. The subscript sets a variable, without a command that would change `$?` or that `set -x` would show."""
_PROMPT_FD = 61
"""Bash's end of the pipe for sentinels."""
_CHUNK = 1 << 16
_IN_TERMINAL = 1 << 16
"""More bytes than a terminal holds (n_tty.c: 4 KiB, pty.c: 8 KiB). A background job may print faster than we read."""
_SENTINEL_ROOM = 64
"""Greatest length of a sentinel, of which a part may have arrived."""


def make_script_file() -> None:
    """Make the file from which bash sources its commands. This must be done before the system call filter is set, because
    the filter forbids memory files."""
    script = os.memfd_create("command")
    os.dup2(script, _SCRIPT_FD)
    os.close(script)


class CommandFinished:
    """The result of one command. `exit_code` is None if the command did not end by itself."""

    def __init__(
        self, output: bytes, exit_code: int | None = None, timed_out: bool = False, restarted: bool = False
    ) -> None:
        self.output = output
        self.exit_code = exit_code
        self.timed_out = timed_out
        self.restarted = restarted


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


class BashTool:
    """One bash at a time. Only one thread may call the methods. While it waits for bash, it serves the sandbox's owner."""

    def __init__(self, settings: Settings, children: ChildProcesses) -> None:
        self._settings = settings
        self._children = children
        self._terminal: _Terminal | None = None
        self._capture = OutputCapture()
        self._was_lost = False
        self._was_ready = False

    def spawn(self) -> None:
        """Start bash without waiting until it is ready. Raises OSError."""
        self._terminal = _Terminal(self._settings, self._children, self._argv(), is_first=not self._was_ready)

    def start(self, owner: Owner) -> None:
        if self._terminal is None:
            self.spawn()
        assert self._terminal is not None
        if not self._terminal.is_ready:
            try:
                self._terminal.get_ready(self._settings, owner)
            except RuntimeError:
                self._terminal = None
                raise
            self._was_ready = True

    def run(self, command: bytes, timeout: float, owner: Owner) -> CommandFinished:
        """Run a command until it ends, until `timeout` seconds are over, or until `owner.stops`."""
        if b"\0" in command:
            return CommandFinished(b"bash: a command cannot contain a NUL byte\n", exit_code=2)
        self.drain()
        try:
            self.start(owner)
        except (RuntimeError, OSError) as error:
            if not self._was_ready:
                raise
            # It worked before. So a program of the task ends it, or leaves it no process or terminal.
            return CommandFinished(f"bash: {error}\n".encode("utf-8", "replace"), restarted=True)
        assert self._terminal is not None
        restarted, self._was_lost = self._was_lost, False
        self._terminal.type(command)
        timed_out, status = False, None
        try:
            status = self._terminal.until_prompt(self._capture, time.monotonic() + timeout, owner)
            if status is None:
                timed_out = True
                self._stop_command(owner)
        except ShellEnded:
            status, restarted = self._end_bash(), True
        return CommandFinished(self._capture.pop(), None if timed_out else status, timed_out, restarted)

    def printed(self, position: int) -> tuple[bytes, int]:
        """Return what the running command has printed after the first `position` bytes, and the number of bytes so far. Any
        thread may call this method."""
        return self._capture.after(position)

    def drain(self) -> None:
        """Read the output of background jobs between calls; the next call returns it. Unread output would block the
        jobs."""
        if self._terminal is None or not self._terminal.is_ready:
            return
        try:
            self._terminal.read_available(self._capture)
        except ShellEnded:
            self._end_bash()
            self._was_lost = True

    def idle_fd(self) -> int | None:
        return self._terminal.fd if self._terminal and self._terminal.is_ready else None

    def _stop_command(self, owner: Owner) -> None:
        """End the running command, and keep bash. Raises ShellEnded if bash ends, or if the command does not end."""
        assert self._terminal is not None
        self._terminal.forget_command()
        for signal_number, seconds in ((SIGINT, INTERRUPT_SECONDS), (SIGKILL, KILL_SECONDS)):
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                # The signal is repeated, because a script may start another command after the stopped one.
                self._terminal.signal_foreground(signal_number)
                step = min(deadline, time.monotonic() + 0.25)
                if self._terminal.until_prompt(self._capture, step, owner, stops=False) is not None:
                    return self._terminal.resync(owner)
        raise ShellEnded

    def _end_bash(self) -> int | None:
        assert self._terminal is not None
        terminal, self._terminal = self._terminal, None
        return terminal.end()

    def _argv(self) -> list[str]:
        options = ["--norc", "--noprofile", "--noediting", "-i"]
        return [*(find_program("bash", self._settings.env["PATH"]) or ["bash"]), *options]


def _new_prompt() -> tuple[str, bytes]:
    """Return a PROMPT_COMMAND that prints a new sentinel, and the beginning of this sentinel. After it come the exit
    status, the number of the line, and a newline."""
    nonce = os.urandom(8).hex()
    command = f"{{ printf '{nonce} %d %d\\n' $? ${{__call:-0}}; }} >&{_PROMPT_FD} 2>/dev/null"
    return command, nonce.encode() + b" "


def _first_line(prompt: str) -> bytes:
    """Return the first line for bash. PROMPT_COMMAND is not in bash's environment: bash 5 would run it before PIPESTATUS
    exists, and PIPESTATUS would stay empty for ever."""
    hide = "export -n PROMPT_COMMAND PS1 PS2; unset HISTFILE; BASH_ARGV0=bash"
    return f" PROMPT_COMMAND={_quoted(prompt)}; {hide}\n".encode()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _spawn_bash(
    terminal: str, lines: int, prompts: int, argv: list[str], env: Mapping[str, str], *, is_first: bool
) -> int:
    """Start bash on the terminal, with the pipe of its lines and the pipe of its sentinels; return its process id. All other
    file descriptors of this process end with the program's start. `is_first`: no process of the task runs yet."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 1, terminal, os.O_RDWR, 0),  # the first terminal of a new session controls it
        (os.POSIX_SPAWN_DUP2, 1, 2),
        (os.POSIX_SPAWN_DUP2, lines, 0),
        (os.POSIX_SPAWN_DUP2, prompts, _PROMPT_FD),
    ]
    if not is_first:
        return fork_and_execute(argv, env, actions, IGNORED_BY_PYTHON)
    return os.posix_spawn(argv[0], argv, env, file_actions=actions, setsid=True, setsigdef=IGNORED_BY_PYTHON)


class _Terminal:
    """The pseudo-terminal with bash on it, and bash's two pipes."""

    def __init__(self, settings: Settings, children: ChildProcesses, argv: list[str], *, is_first: bool) -> None:
        prompt, self._sentinel = _new_prompt()
        self._pending = b""
        self._number: int | None = None
        """Number of the line whose prompt is awaited; None for any prompt."""
        self._is_mute = False
        """True once bash has closed the pipe of its sentinels, so that it cannot tell when a command ends."""
        self.forget_command()
        env = {**settings.env, "PS1": "", "PS2": ""}
        env.pop("PROMPT_COMMAND", None)
        try:
            os.chdir(settings.workdir)  # bash starts in the folder of this process
        except OSError:
            os.chdir("/")
        self.fd, terminal = os.openpty()
        # The mode is set before bash starts: after a job is killed, bash restores the mode from the time of its start.
        self._mode = termios.tcgetattr(terminal)  # kept to undo a command's changes to the terminal
        self._mode[1] &= ~termios.OPOST
        self._mode[3] &= ~termios.ECHO
        termios.tcsetattr(terminal, termios.TCSANOW, self._mode)
        termios.tcsetwinsize(terminal, (50, 160))
        os.set_blocking(self.fd, False)
        lines, self._lines = os.pipe()
        self._prompts, prompts = os.pipe()
        try:
            self._child = children.start(
                lambda: _spawn_bash(os.ttyname(terminal), lines, prompts, argv, env, is_first=is_first)
            )
        except OSError:
            os.close(self.fd)
            os.close(self._lines)
            os.close(self._prompts)
            raise
        finally:
            for fd in (terminal, lines, prompts):
                os.close(fd)
        os.set_blocking(self._lines, False)
        os.set_blocking(self._prompts, False)
        self._type_line(_first_line(prompt))
        self.is_ready = False
        """True once bash has its limits, and has printed its first prompt."""

    def get_ready(self, settings: Settings, owner: Owner) -> None:
        """Raises RuntimeError if bash has ended, or prints no prompt."""
        output, deadline = OutputCapture(), time.monotonic() + START_SECONDS
        try:
            settings.confine(self._child.pid)
            if self.until_prompt(output, deadline, owner, stops=False) is not None:
                self.is_ready = True
                return
        except (ShellEnded, ProcessLookupError, PermissionError):
            pass
        self.end()
        raise RuntimeError(f"bash did not start; it said: {output.pop().decode(errors='replace')!r}")

    def type(self, command: bytes) -> None:
        self.forget_command()
        os.pwrite(_SCRIPT_FD, command, 0)
        self._number = int.from_bytes(os.urandom(7), "big")
        self._type_line((_LINE % self._number).encode())

    def forget_command(self) -> None:
        """If bash has not yet read the typed line, bash will run nothing."""
        os.ftruncate(_SCRIPT_FD, 0)

    def resync(self, owner: Owner) -> None:
        """Skip all prompts of a stopped command. Raises ShellEnded if bash does not answer."""
        deadline = time.monotonic() + RESYNC_SECONDS
        while time.monotonic() < deadline:
            prompt, self._sentinel = _new_prompt()
            self._number = None
            self._type_line(f" PROMPT_COMMAND={_quoted(prompt)}\n".encode())
            # Repeated, because bash drops a line that it reads while a signal is pending.
            step = min(deadline, time.monotonic() + 0.25)
            if self.until_prompt(OutputCapture(), step, owner, stops=False) is not None:
                return
        raise ShellEnded

    def _type_line(self, line: bytes) -> None:
        try:
            termios.tcsetattr(self.fd, termios.TCSANOW, self._mode)
            os.write(self._lines, line)
        except OSError:
            pass

    def until_prompt(self, capture: OutputCapture, deadline: float, owner: Owner, *, stops: bool = True) -> int | None:
        """Feed `capture` until the next prompt; return the exit status, or None at the deadline. With `stops`, return None
        also once `owner.stops`.

        Raises ShellEnded.
        """
        watched = [self.fd, self._prompts, self._child.exited, owner.fileno()]
        while True:
            ready = readable(watched, deadline)
            if self.fd in ready:
                self._read_output(capture)
            status = self._read_prompt() if self._prompts in ready else None
            if status is not None or self._is_mute or self._child.exited in ready:
                self.read_available(capture)
                return status
            if owner.fileno() in ready:
                owner.take_call()
            if not ready or time.monotonic() > deadline or (stops and owner.stops):
                return None

    def read_available(self, capture: OutputCapture) -> None:
        """Feed `capture` with the terminal's present content. Raises ShellEnded."""
        count = 0
        while count < _IN_TERMINAL and (length := self._read_output(capture)):
            count += length
        if self._is_mute or self._child.status is not None:
            raise ShellEnded

    def _read_output(self, capture: OutputCapture) -> int:
        """Feed `capture` once; return the number of bytes, 0 if the terminal is empty now."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            raise ShellEnded from None  # EIO: all processes have closed the other side
        if not chunk:
            raise ShellEnded
        capture.feed(chunk)
        return len(chunk)

    def _read_prompt(self) -> int | None:
        """Read the pipe of sentinels once; return the exit status if the sentinel is there."""
        try:
            chunk = os.read(self._prompts, _CHUNK)
        except BlockingIOError:  # a process of the task has read it
            return None
        self._is_mute = not chunk
        self._pending += chunk
        while True:
            _, found, after = self._pending.partition(self._sentinel)
            line, newline, rest = after.partition(b"\n")
            if not newline:
                self._pending = (found + after)[-_SENTINEL_ROOM:] if found else self._pending[-_SENTINEL_ROOM:]
                return None
            # A process of the task can write a sentinel too, with anything in it.
            status, _, number = line.partition(b" ")
            is_whole = status.isdigit() and number.isdigit() and len(line) < _SENTINEL_ROOM
            self._pending = rest if is_whole else after
            if is_whole and self._number in (None, int(number)):
                return int(status) & 0xFF

    def signal_foreground(self, signal_number: int) -> None:
        """Signal the command in the foreground. Bash itself gets only SIGINT."""
        try:
            group = os.tcgetpgrp(self.fd)
            if group > 0 and (group != self._child.pid or signal_number == SIGINT):
                os.killpg(group, signal_number)
        except OSError:
            pass

    def end(self) -> int | None:
        """Kill all remaining processes of bash's session; return bash's exit code, or None if bash had not ended
        before."""
        self._wait(0.2)
        status = self._child.status
        # Stop the processes before killing them: a running fork bomb starts processes faster than they are killed.
        deadline = time.monotonic() + KILL_SECONDS
        while kill_family(self._child.pid, SIGSTOP) and time.monotonic() < deadline:
            kill_family(self._child.pid, SIGKILL)
        self._child.kill()  # if it has no session of its own yet
        self._wait(KILL_SECONDS)
        for fd in (self.fd, self._lines, self._prompts):
            os.close(fd)
        self._child.close()
        return status

    def _wait(self, seconds: float) -> None:
        readable([self._child.exited], time.monotonic() + seconds)
