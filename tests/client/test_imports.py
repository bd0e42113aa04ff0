"""Import paths of the client."""

from __future__ import annotations

import subprocess
import sys

import rollyard.client
from rollyard.client.async_client import AsyncClient
from rollyard.client.sync_client import Client

PROGRAM = """
import sys, rollyard.client
print([m for m in sys.modules if m.startswith("rollyard.client.") or m == "aiohttp"])
from rollyard.client import *
print(AsyncClient.__name__, Client.__name__)
"""


def test_both_clients_are_found_in_the_package_and_load_on_first_use() -> None:
    assert rollyard.client.Client is Client
    assert rollyard.client.AsyncClient is AsyncClient
    assert not hasattr(rollyard.client, "Server")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == ["[]", "AsyncClient Client"]
