"""The Python process behind the `ipython` tool: one IPython shell that runs cells on request.

The messages have the forms of the Jupyter protocol (execute_request in; status, execute_result, error, execute_reply
out). Each message is one frame on an inherited socket. There is no `stream` message: the file descriptors of standard
output and standard error are one pipe to the sandbox agent. So output of subprocesses and C libraries is included, in
order.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import io
import os
import signal
import socket
import sys
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

from rollyard.sandbox_agent.frames import Header, Stream

SOCKET_FD = 3
VERSION = "5.4"
_COPIES_FROM = 40
"""Lowest number of the copies of standard output and standard error, out of the way of a cell's own files."""
MOST_CHARACTERS = 1 << 20
"""Greatest length of a value or a traceback in a message. A character has at most 12 bytes in JSON."""
MOST_LINE_CHARACTERS = 1000
"""Greatest length of a line in a traceback. It repeats the cell's lines, one of which may hold a whole file."""


def message(kind: str, content: Header, parent: Header, number: int) -> Header:
    """Build a Jupyter message. `parent`: header of the message that the new one answers."""
    header = {
        "msg_id": f"{os.getpid()}_{number}",
        "msg_type": kind,
        "session": str(os.getpid()),
        "username": "agent",
        "date": datetime.datetime.now(datetime.UTC).isoformat(),
        "version": VERSION,
    }
    return {"header": header, "parent_header": parent, "metadata": {}, "content": content}


def _shortened(text: str, most: int = MOST_CHARACTERS, between: str = "\n") -> str:
    """Leave the middle of a long text out."""
    excess = len(text) - most
    if excess <= 0:
        return text
    half = most // 2
    return f"{text[:half]}{between}[{excess} characters left out]{between}{text[-half:]}"


class _Value(DisplayHook):  # type: ignore[misc]
    """Keeps the text of a cell's value. Without this class, IPython would print the text after `Out[n]:`."""

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        self.shell.value_text = _shortened(format_dict.get("text/plain", ""))

    def finish_displayhook(self) -> None:
        pass


class _Shell(InteractiveShell):  # type: ignore[misc]
    displayhook_class = Type(_Value)
    value_text: str | None = None
    error: Header | None = None
    exiting = False

    # With `system_raw` a command writes directly to the kernel's file descriptors. `system_piped` starts a terminal of
    # its own and copies the output with a delay.
    system = InteractiveShell.system_raw

    def ask_exit(self) -> None:
        self.exiting = True

    def _showtraceback(self, etype: type, evalue: BaseException, stb: str) -> None:
        text = stb if isinstance(stb, str) else self.InteractiveTB.stb2text(stb)
        text = "\n".join(_shortened(line, MOST_LINE_CHARACTERS, " ") for line in text.split("\n"))
        self.error = {"ename": etype.__name__, "evalue": "", "traceback": [_shortened(text)]}


class _Outputs:
    """Standard output and standard error of cells. What a cell closes or redirects lasts as long as the cell, so that no
    later cell is mute."""

    def __init__(self) -> None:
        self._copies = {fd: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _COPIES_FROM) for fd in (1, 2)}

    def restore(self) -> None:
        for fd, copy in self._copies.items():
            os.dup2(copy, fd)
        for name, fd in (("stdout", 1), ("stderr", 2)):
            stream = getattr(sys, name, None)
            if stream is None or getattr(stream, "closed", False):
                raw = open(fd, "wb", buffering=0, closefd=False)  # noqa: SIM115 - it lasts as long as this process
                setattr(
                    sys, name, io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
                )


class IPythonKernel:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pid = os.getpid()
        self._sent = 0
        self._outputs = _Outputs()
        config = Config()
        config.InteractiveShell.xmode = "Plain"
        config.InteractiveShell.colors = "nocolor"
        config.HistoryManager.enabled = False
        config.DisplayFormatter.active_types = ["text/plain"]
        self._shell = _Shell.instance(config=config)

    def serve(self) -> None:
        """Answer requests until the socket is closed or a cell asks to exit."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._warm_up()
        # Modules in the working directory can be imported from here on. IPython has imported its own before: a file called
        # random.py must not take the place of one.
        sys.path.insert(0, "")
        self._send("status", {"execution_state": "idle"}, {})
        while frame := self._stream.receive():
            request, _ = frame
            self._execute(request["content"]["code"])
            if os.getpid() != self._pid:
                os._exit(0)  # a fork of this process, made by the cell, must not answer too
            self._reply(request["header"])
            if self._shell.exiting:
                return

    def _warm_up(self) -> None:
        """Run a cell that leaves no trace. The first cell and the first value of a process take 10 ms longer than others."""
        self._shell.run_cell("1", store_history=False, silent=True)
        self._shell.display_formatter.format(1)

    def _execute(self, code: str) -> None:
        shell = self._shell
        shell.value_text, shell.error = None, None
        self._outputs.restore()
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            shell.run_cell(code, store_history=True)
        except KeyboardInterrupt:
            shell.error = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        for output in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                output.flush()

    def _reply(self, parent: Header) -> None:
        shell, count = self._shell, self._shell.execution_count - 1
        if shell.value_text is not None:
            data = {"data": {"text/plain": shell.value_text}, "metadata": {}, "execution_count": count}
            self._send("execute_result", data, parent)
        if shell.error is not None:
            self._send("error", shell.error, parent)
        payload = [{"source": "ask_exit", "keepkernel": False}] if shell.exiting else []
        status = {"status": "error" if shell.error else "ok", "execution_count": count, "payload": payload}
        self._send("execute_reply", status, parent)

    def _send(self, kind: str, content: Header, parent: Header) -> None:
        self._sent += 1
        self._stream.send(message(kind, content, parent, self._sent))


def main() -> None:
    os.chdir(sys.argv[1])
    sys.argv = [""]
    # The bundle's dynamic loader has started this interpreter (see `own_program`), so a cell's subprocess cannot
    # execute the present `sys.executable` directly. The wrapper can be executed directly.
    wrapper = "/opt/rollyard/fallback/python3"
    if os.path.exists(wrapper):
        sys.executable = wrapper
    sock = socket.socket(fileno=SOCKET_FD)
    sock.set_inheritable(False)
    IPythonKernel(Stream(sock)).serve()


if __name__ == "__main__":
    main()
