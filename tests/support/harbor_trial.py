"""Trials of Harbor, in environments that are copies of a root folder. It prints the rewards of each as JSON.

It runs in an environment of Python that has Harbor. Each command runs in bubblewrap.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial


class FolderEnvironment(BaseEnvironment):
    """A copy of `root`; of `verifier_root`, if the image is built from the folder of the tests."""

    def __init__(self, *args, root, verifier_root, bubblewrap, **kwargs):
        super().__init__(*args, **kwargs)
        self._source = verifier_root if Path(self.environment_dir).name == "tests" else root
        self._program = bubblewrap
        self._held = tempfile.TemporaryDirectory(prefix="rollyard-test-")
        self._root = Path(self._held.name) / "root"

    @staticmethod
    def type():
        return "folder"

    @property
    def capabilities(self):
        return EnvironmentCapabilities(
            disable_internet=True, network_allowlist=True, network_allowlist_hostnames=True, dynamic_network_policy=True
        )

    def _validate_definition(self):
        pass

    async def start(self, force_build):
        subprocess.run(["cp", "-a", self._source, self._root], check=True)
        (self._root / (self.task_env_config.workdir or "").lstrip("/")).mkdir(exist_ok=True)
        for folder in ("agent", "verifier", "artifacts"):
            (self._root / "logs" / folder).mkdir(parents=True, exist_ok=True)

    async def stop(self, delete):
        self._held.cleanup()

    def _inside(self, path):
        return self._root / str(path).lstrip("/")

    async def upload_file(self, source_path, target_path):
        self._inside(target_path).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-L", source_path, self._inside(target_path)], check=True)

    async def upload_dir(self, source_dir, target_dir):
        self._inside(target_dir).mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-rLp", f"{source_dir}/.", self._inside(target_dir)], check=True)

    async def download_file(self, source_path, target_path):
        subprocess.run(["cp", self._inside(source_path), target_path], check=True)

    async def download_dir(self, source_dir, target_dir):
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", f"{self._inside(source_dir)}/.", target_dir], check=True)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        shell = "bash" if (self._root / "bin/bash").exists() else "sh"
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", **(self._merge_env(env) or {})}
        words = [
            self._program,
            "--bind",
            self._root,
            "/",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--unshare-pid",
            "--unshare-net",
        ]
        words += ["--die-with-parent", "--clearenv", "--chdir", cwd or self.task_env_config.workdir or "/"]
        for name, value in variables.items():
            words += ["--setenv", name, value]
        process = await asyncio.create_subprocess_exec(
            *words, shell, "-c", command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            async with asyncio.timeout(timeout_sec):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode)


class WorkAgent(BaseAgent):
    """Runs one command in each step."""

    def __init__(self, *args, work, **kwargs):
        super().__init__(*args, **kwargs)
        self._work = iter(work)

    @staticmethod
    def name():
        return "work"

    def version(self):
        return "1"

    async def setup(self, environment):
        pass

    async def run(self, instruction, environment, context):
        await environment.exec(next(self._work))


async def trial(case, roots):
    agent = {"import_path": "harbor_trial:WorkAgent", "kwargs": {"work": case["work"]}}
    if case["work"] is None:
        agent = {"name": "oracle"}
    with tempfile.TemporaryDirectory(prefix="rollyard-test-") as trials:
        config = TrialConfig(
            task=TaskConfig(path=case["folder"]), trials_dir=trials, agent=AgentConfig(**agent),
            environment=EnvironmentConfig(import_path="harbor_trial:FolderEnvironment", kwargs=roots),
        )  # fmt: skip
        made = await Trial.create(config)
        result = await made.run()
    return result.verifier_result.rewards if result.verifier_result is not None else None


async def main():
    asked = json.load(sys.stdin)
    found = await asyncio.gather(*(trial(case, asked["roots"]) for case in asked["cases"]))
    print("RESULTS", json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
