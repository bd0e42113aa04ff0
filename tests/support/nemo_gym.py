"""NeMo Gym as released, each version in an environment of its own, and its command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.support.released import environment

PYTHONS = {"0.4.0": "python3.12", "0.7.0": "python3.13"}
"""Python for each version. 0.7.0 asks for 3.13.14; it also runs with earlier releases of 3.13."""
PLACEHOLDER = "probe_placeholder"
VALIDATE = """
import json, sys
from nemo_gym.base_resources_server import BaseVerifyResponse
for line in open(sys.argv[1]):
    row = json.loads(line)
    BaseVerifyResponse.model_validate({k: row[k] for k in ("responses_create_params", "response", "reward")})
"""


class NemoGym:
    """A folder with a configuration that names a bridge as agent, and NeMo Gym's servers."""

    def __init__(self, folder: Path, version: str, bridge: str) -> None:
        """`bridge`: its URL."""
        self.folder = folder
        self.python = environment("nemo-gym", version, PYTHONS[version])
        host, port = bridge.removeprefix("http://").split(":")
        where = {"host": host, "port": int(port)}
        config: dict[str, Any] = {
            "rollyard": {"responses_api_agents": {"rollyard": where}},
            # `gym env start` wants a block that it starts itself
            PLACEHOLDER: {"resources_servers": {PLACEHOLDER: {"entrypoint": "app.py", "domain": "other", **where}}},
        }
        if version != "0.4.0":  # newer versions reach agents through environment servers
            server = {"type": "responses_api_agents", "name": "rollyard"}
            config["rollyard_env"] = {"environment_servers": {"rollyard": {**where, "agent_server": server}}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        placeholder = folder / "resources_servers" / PLACEHOLDER
        placeholder.mkdir(parents=True)
        (placeholder / "app.py").write_text("import signal\nsignal.pause()\n")
        (placeholder / "requirements.txt").touch()
        (placeholder / ".venv").symlink_to(self.python)
        (folder / "out").mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]

    @contextlib.contextmanager
    def servers(self) -> Iterator[None]:
        """Run its servers while the context is open."""
        started = self.start("env", "start", "+config_paths=[config.yaml]", "+skip_venv_if_present=true")
        try:
            yield
        finally:
            self._kill_all()
            started.wait(60)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start `gym` with these words, in a process group of its own."""
        env = {**os.environ, "HOME": str(self.folder), "PATH": f"{self.python / 'bin'}:{os.environ['PATH']}"}
        env |= {"VIRTUAL_ENV": str(self.python), "PYTHONPATH": ""}
        with (self.folder / "gym.log").open("a") as log:
            head = f"+head_server={{host: 127.0.0.1, port: {self._port}}}"
            command = [str(self.python / "bin" / "gym"), *words, head]
            return subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log, start_new_session=True)

    def _kill_all(self) -> None:
        """Kill what was started in this folder: Ray's processes are in sessions of their own."""
        ours = f"HOME={self.folder}".encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and ours in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)

    async def ready(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self._port}/global_config_dict_yaml"
            async with aiohttp.ClientSession() as http, http.get(url) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    def collect(self, rows: Sequence[dict[str, Any]], name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start the collection of these rows, twice each, into out/NAME.jsonl."""
        (self.folder / f"{name}-rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        files = [f"+input_jsonl_fpath={name}-rows.jsonl", f"+output_jsonl_fpath=out/{name}.jsonl"]
        how = ["+agent_name=rollyard", "+num_repeats=2", "+num_samples_in_parallel=8", *words]
        return self.start("eval", "run", "--no-serve", *files, *how)

    def collected(self, name: str) -> list[dict[str, Any]]:
        file = self.folder / "out" / f"{name}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def validate(self, name: str) -> None:
        """Have NeMo Gym's own classes read what it collected."""
        file = self.folder / "out" / f"{name}.jsonl"
        subprocess.run([self.python / "bin" / "python", "-c", VALIDATE, file], check=True)
