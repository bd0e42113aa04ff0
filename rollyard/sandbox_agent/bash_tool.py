"""The `bash` tool: commands in one resident bash. Its directory, variables and background jobs last from call to call.

A bash that has ended, or that can no longer run commands, is replaced, and the result says so. A command that has not begun
then runs in the new bash.
"""

from __future__ import annotations

import time

from rollyard.sandbox_agent.output_capture import OutputCapture
from rollyard.sandbox_agent.own_program import find_program, own_bash
from rollyard.sandbox_agent.resident_shell import ResidentShell, ShellEnded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollyard.sandbox_agent.child_processes import ChildProcesses
    from rollyard.sandbox_agent.resident_shell import Owner
    from rollyard.sandbox_agent.settings import Settings

INTERRUPT_SECONDS = 1.0
KILL_SECONDS = 1.0
_OPTIONS = ["--norc", "--noprofile", "--noediting", "-i"]


class CommandFinished:
    """The result of one command. `exit_code` is None if the command did not end by itself. `total`: number of bytes that
    the command has printed; `output` has not all of them if they are many."""

    def __init__(
        self,
        output: bytes,
        exit_code: int | None = None,
        timed_out: bool = False,
        restarted: bool = False,
        total: int | None = None,
    ) -> None:
        self.output = output
        self.total = len(output) if total is None else total
        self.exit_code = exit_code
        self.timed_out = timed_out
        self.restarted = restarted


class BashTool:
    """One bash at a time. Only one thread may call the methods. While it waits for bash, it serves the sandbox's owner."""

    def __init__(self, settings: Settings, children: ChildProcesses) -> None:
        self._settings = settings
        self._children = children
        self._shell: ResidentShell | None = None
        self._capture = OutputCapture()
        self._was_lost = False
        self._was_ready = False
        self._may_trap_interrupts = False
        """True if a command of this bash may have set a trap for INT, which goes on with the rest of a stopped line."""

    def spawn(self) -> ResidentShell:
        """Start bash without waiting until it is ready. If the image's bash cannot be executed, because its loader is missing
        or it is for another machine, ours starts. Raises OSError."""
        program = find_program("bash", self._settings.env["PATH"]) or ["bash"]
        try:
            shell = self._started(program)
        except OSError:
            own = own_bash()
            if own is None or own == program:
                raise
            shell = self._started(own)
        self._shell = shell
        return shell

    def _started(self, program: list[str]) -> ResidentShell:
        return ResidentShell(self._settings, self._children, [*program, *_OPTIONS], is_first=not self._was_ready)

    def start(self, owner: Owner) -> ResidentShell:
        """Return a bash that is ready. Raises RuntimeError, OSError."""
        shell = self._shell or self.spawn()
        if not shell.is_ready:
            try:
                shell.get_ready(self._settings, owner)
            except RuntimeError:
                self._shell = None
                raise
            self._was_ready = True
        return shell

    def run(self, command: bytes, timeout: float, owner: Owner) -> CommandFinished:
        """Run a command until it ends, until `timeout` seconds are over, or until `owner.stops`."""
        if b"\0" in command:
            return CommandFinished(b"bash: a command cannot contain a NUL byte\n", exit_code=2)
        self.drain()
        done = self._run_once(command, timeout, owner)
        if done is None:  # the bash of earlier calls does not run commands any more
            done = self._run_once(command, timeout, owner) or CommandFinished(b"bash: the command did not begin\n")
            done.restarted = True
        return done

    def _run_once(self, command: bytes, timeout: float, owner: Owner) -> CommandFinished | None:
        """Return None if bash has not begun the command, and was ended."""
        try:
            shell = self.start(owner)
            shell.type(command)
        except (RuntimeError, OSError) as error:
            if not self._was_ready:
                raise
            # It worked before. So a program of the task ends it, or leaves it no process or terminal.
            return CommandFinished(f"bash: {error}\n".encode("utf-8", "replace"), restarted=True)
        self._may_trap_interrupts |= _may_trap_interrupts(command)
        restarted, self._was_lost = self._was_lost, False
        timed_out, status = False, None
        try:
            if shell.until_prompt(self._capture, time.monotonic() + timeout, owner):
                if not shell.has_read_command():
                    raise ShellEnded
                status = shell.status(owner)
            else:
                timed_out = True
                self._stop_command(shell, owner)
        except ShellEnded:
            begun = timed_out or shell.has_read_command()
            status, restarted = self._end(shell), True
            if not begun:
                self._capture.pop()
                return None
        total = self._capture.total
        return CommandFinished(self._capture.pop(), None if timed_out else status, timed_out, restarted, total)

    def printed(self, position: int) -> tuple[bytes, int]:
        """Return what the running command has printed after the first `position` bytes, and the number of bytes so far. Any
        thread may call this method."""
        return self._capture.after(position)

    def drain(self) -> None:
        """Read what background jobs have printed between calls, and drop it. Unread text would block the jobs."""
        shell = self._shell
        if shell is None or not shell.is_ready:
            return
        try:
            shell.drain()
        except ShellEnded:
            self._end(shell)
            self._was_lost = True

    def idle_fds(self) -> list[int]:
        return self._shell.idle_fds() if self._shell and self._shell.is_ready else []

    def _stop_command(self, shell: ResidentShell, owner: Owner) -> None:
        """End the running command with all its processes, and keep bash. Raises ShellEnded if bash ends, if the command
        does not end, or if bash would run the rest of the command line."""
        shell.forget_command()
        work = shell.foreground()
        try:
            self._interrupt_command(shell, owner)
        except ShellEnded:
            shell.freeze()  # it would run the rest of the line once its command has ended
            raise
        finally:
            for process in work:  # one in a session of its own did not get the interrupt
                process.kill()
        shell.set_prompt(owner)

    def _interrupt_command(self, shell: ResidentShell, owner: Owner) -> None:
        if not self._may_trap_interrupts and not shell.ignores_interrupts():
            for kills, seconds in ((False, INTERRUPT_SECONDS), (True, KILL_SECONDS)):
                deadline = time.monotonic() + seconds
                while time.monotonic() < deadline:
                    # The signals are repeated, because a script may start another command after the stopped one.
                    shell.interrupt()
                    for process in shell.foreground() if kills else []:
                        process.kill()
                    if shell.until_prompt(self._capture, min(deadline, time.monotonic() + 0.25), owner, stops=False):
                        return
        shell.finish(self._capture)
        raise ShellEnded

    def _end(self, shell: ResidentShell) -> int | None:
        self._shell = None
        self._may_trap_interrupts = False
        return shell.end()


def _may_trap_interrupts(command: bytes) -> bool:
    """Return whether the command may set a trap for INT in bash itself. After an interrupt, bash would run the trap and then
    the rest of the command line."""
    if b"trap" not in command:
        return False
    import re  # it takes 5 ms, and few commands set traps

    return re.search(rb"(^|[;&|({\n]|\bdo|\bthen)\s*trap\b[^;\n]*\b(INT|2)\b", command) is not None
