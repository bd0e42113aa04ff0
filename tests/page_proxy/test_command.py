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


async def test_the_browser_is_opened_and_each_signal_ends_the_command(yard: Yard, tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    running = [command(yard, BROWSER=str(browser)), command(yard, "--no-browser", BROWSER="false"), command(yard)]
    for process, number in zip(running, numbers, strict=True):
        assert process.stdout is not None
        address = (await asyncio.to_thread(process.stdout.readline)).strip()
        assert address.startswith("http://127.0.0.1:")
        if number is signal.SIGINT:
            assert await until(lambda: opened.exists() and opened.read_text().strip()) == address
        async with aiohttp.ClientSession() as http, http.get(address) as answer:
            assert answer.status == 200
            assert answer.cookies
        process.send_signal(number)
        out, err = await asyncio.to_thread(process.communicate, timeout=60)
        assert (process.returncode, out) == (0, "")
        assert "within 5 minutes" in err
        assert "Ctrl-C" in err


async def test_ssh_is_explained_and_a_taken_port_is_an_error(yard: Yard, proxy: RunningProxy) -> None:
    taken = command(yard, "--port", str(proxy.port))
    _, err = await asyncio.to_thread(taken.communicate, timeout=60)
    assert taken.returncode == 1
    assert f"cannot listen on port {proxy.port}" in err
    process = command(yard, SSH_CONNECTION="10.0.0.1 1 10.0.0.2 22")
    assert process.stdout is not None
    port = (await asyncio.to_thread(process.stdout.readline)).split(":")[2].partition("/")[0]
    process.terminate()
    _, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert f"ssh -L {port}:127.0.0.1:{port} " in err
