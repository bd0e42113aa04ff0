"""Calls of the blocking client that an exception interrupts."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from rollyard.client import Client


class Interrupted(Exception):
    """Stands for a KeyboardInterrupt."""


def test_a_call_that_was_interrupted_ends_with_its_client(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    kubeconfig = tmp_path / "kubeconfig"
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as threads:
            silent.settimeout(60)
            port = silent.getsockname()[1]
            kubeconfig.write_text(
                yaml.safe_dump(
                    {
                        "current-context": "c",
                        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                        "users": [{"name": "c", "user": {"token": "t"}}],
                        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
                    }
                )
            )
            with Client(kubeconfig=kubeconfig) as client:

                def interrupt_once_connected() -> socket.socket:
                    connection, _ = silent.accept()
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
                    return connection

                connected = threads.submit(interrupt_once_connected)
                with pytest.raises(Interrupted):
                    client.wait("r")
                tasks = asyncio.all_tasks(client._loop)
                assert tasks, "the wait goes on in the loop"
            assert all(task.done() for task in tasks)
            connected.result().close()
            del tasks
            gc.collect()  # what is destroyed unfinished warns, which fails the test
    finally:
        signal.signal(signal.SIGALRM, before)
