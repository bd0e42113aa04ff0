"""`rollyard ui`: the server's page in a browser."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click

from rollyard.client.kubeconfig import load_context
from rollyard.page_proxy.browser_sessions import CODE_SECONDS


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="the server's admin.kubeconfig")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="port of this machine's loopback  [default: any free port]"
)
@click.option("--no-browser", is_flag=True, help="only print the address")
@click.option(
    "--demo", is_flag=True, help="show a recorded training, from a server of its own that ends with the command"
)
def ui(kubeconfig: Path | None, port: int, no_browser: bool, demo: bool) -> None:
    """Open the server's page in a browser.

    The command runs until Ctrl-C. It passes the page and what the page reads on to this machine's loopback, for this user
    only. It changes nothing on the server.
    """
    from rollyard.page_proxy.main import serve_until_ended

    opens = not no_browser and _has_browser()
    opened = False

    def announce(address: str) -> None:
        nonlocal opened
        click.echo(address)
        click.echo(f"  signs one browser in, once, within {CODE_SECONDS / 60:.0f} minutes", err=True)
        if not opened:
            opened = True
            _explain(address, opens, file if demo else None)
            if opens:  # in a thread that nobody waits for, because some browsers return only when they are closed
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    with _demonstration() if demo else nullcontext(kubeconfig) as file:
        asyncio.run(serve_until_ended(load_context(file), port, announce))


@contextmanager
def _demonstration() -> Iterator[Path]:
    from rollyard.page_proxy.recorded_server import served_recording
    from rollyard.page_proxy.recording import RECORDING

    for number in (signal.SIGTERM, signal.SIGHUP):  # until the proxy has its own handlers
        signal.signal(number, lambda *_: sys.exit(0))
    click.echo("starting a server with a recorded training (some seconds)", err=True)
    with served_recording(RECORDING) as kubeconfig:
        yield kubeconfig


def _has_browser() -> bool:
    """Return whether a browser can show a window. A browser for terminals would take this one."""
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _explain(address: str, opens: bool, own: Path | None) -> None:
    """`own`: kubeconfig of a server that belongs to this command."""
    port = address.partition("127.0.0.1:")[2].partition("/")[0]
    if not opens and "SSH_CONNECTION" in os.environ:
        tunnel = f"ssh -L {port}:127.0.0.1:{port} {os.uname().nodename}"
        click.echo(f"  on your own machine: `{tunnel}`, then open the address there", err=True)
    if own is not None:
        click.echo(f"  for commands beside the page, in another shell: `export ROLLYARD_KUBECONFIG={own}`", err=True)
    click.echo("  Ctrl-C ends it", err=True)
