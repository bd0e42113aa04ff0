"""The command `rollyard ui`: what it prints, the browser that it opens, and its end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.page_proxy.conftest import RunningProxy
from tests.support.until import until
from tests.support.yard import ROOT, Yard

pytestmark = pytest.mark.asyncio(loop_scope="package")


def command(yard: Yard, *words: str, **variables: str) -> subprocess.Popen[str]:
    env = {name: value for name, value in yard.user_env.items() if name not in ("DISPLAY", "BROWSER")} | variables
    return subprocess.Popen(
        [sys.executable, "-m", "rollyard.cli.main", "ui", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT,
    )  # fmt: skip


async def test_the_browser_is_opened_and_ctrl_c_ends_the_command(yard: Yard, tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\nwhile [ -e {opened} ]; do sleep 0.05; done\n')
    browser.chmod(0o755)
    process = command(yard, BROWSER=str(browser))
    address = await printed(process)
    assert await until(lambda: opened.exists() and opened.read_text().strip()) == address
    async with aiohttp.ClientSession() as http, http.get(address) as answer:
        assert answer.status == 200
        assert answer.cookies
    process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(process.wait, 60) == 0, "also while the browser is open"
    opened.unlink()
    err = await ended_by(process, signal.SIGINT)
    assert "within 5 minutes" in err
    assert "Ctrl-C" in err


async def test_a_tunnel_is_explained_and_the_end_of_the_terminal_ends_the_command(yard: Yard) -> None:
    process = command(yard, "--no-browser", BROWSER="false", SSH_CONNECTION="10.0.0.1 1 10.0.0.2 22")
    port = (await printed(process)).split(":")[2].partition("/")[0]
    assert f"ssh -L {port}:127.0.0.1:{port} " in await ended_by(process, signal.SIGHUP)


async def test_a_taken_port_is_an_error(yard: Yard, proxy: RunningProxy) -> None:
    _, err = await yard.rollyard("ui", "--port", str(proxy.port), "--no-browser", code=1)
    assert f"cannot listen on port {proxy.port}" in err


async def printed(process: subprocess.Popen[str]) -> str:
    """Return the first address that the command prints."""
    assert process.stdout is not None
    address = (await asyncio.to_thread(process.stdout.readline)).strip()
    assert address.startswith("http://127.0.0.1:")
    return address


async def ended_by(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """End the command; return its standard error."""
    process.send_signal(number)
    out, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert (process.returncode, out) == (0, "")
    return err
