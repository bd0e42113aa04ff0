"""Task folders of Harbor, in the format's own words, and what agents do in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TEST = "#!/bin/bash\n"
GRADE = (
    TEST
    + 'grep -qx "hello world" /work/answer.txt && r=1 || r=0\necho "graded $r"\necho $r > /logs/verifier/reward.txt\n'
)
"""Test script that wants one line in a file."""
BUNDLED = "#!/bin/sh\ngrep -qx 'hello world' /out/answer.txt && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
"""Test script of an image that only a verifier has."""
WRITE = "mkdir -p /work; echo 'hello world' > /work/answer.txt"
"""Right work."""
FORGED = "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json"
ENVIRONMENT = '[environment]\ndocker_image = "small:1"\nworkdir = "/work"\n'


@dataclass(frozen=True)
class HarborFolder:
    config: str
    """Text of task.toml after its first line."""
    files: Mapping[str, str]
    """Path -> text of the other files. Those of programs are executable."""

    def write(self, folder: Path) -> Path:
        """Write the folder, and return it."""
        texts = {"task.toml": f'schema_version = "1.4"\n{self.config}', **self.files}
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if text.startswith("#!"):
                path.chmod(0o755)
        return folder


def one_step(config: str = "", test: str = GRADE, top: str = "", **files: str) -> HarborFolder:
    """Return a folder with an image that it does not build. `config`: after the table of the environment. `top`: before."""
    texts = {"instruction.md": "Write hello world.\n", "tests/test.sh": test, "solution/solve.sh": f"{TEST}{WRITE}\n"}
    return HarborFolder(top + ENVIRONMENT + config, {**texts, **files})


def two_steps(top: str = "", of_each: str = "", **files: str) -> HarborFolder:
    """Return a folder with two steps, each of which wants a file of its name. `of_each`: lines of each step."""
    texts = {}
    for name in ("one", "two"):
        texts[f"steps/{name}/instruction.md"] = f"Write {name}.\n"
        test = f"{TEST}[ -e /work/{name} ] && r=1 || r=0.25\necho $r > /logs/verifier/reward.txt\n"
        texts[f"steps/{name}/tests/test.sh"] = test
        texts[f"steps/{name}/solution/solve.sh"] = f"{TEST}touch /work/{name}\n"
    steps = "".join(f'[[steps]]\nname = "{name}"\n{of_each}' for name in ("one", "two"))
    return HarborFolder(top + ENVIRONMENT + steps, {**texts, **files})


@dataclass(frozen=True)
class HarborCase:
    """A folder, and what an agent does in each of its steps."""

    folder: HarborFolder
    work: Sequence[str]
    reward: float | None
    """Reward of this work; None: there is none."""
    attack: str = ""
    """Work that must get 0."""


_IF_RIGHT = f"{TEST}grep -qx 'hello world' /work/answer.txt && echo 1 > /logs/verifier/reward.txt\n"
_VARIABLES = f'{TEST}[ "$NAME $LEAST" = "world 1" ] && cp /work/seen /logs/verifier/reward.txt; exit 3\n'
_ARTIFACTS = f"{TEST}cat /logs/artifacts/note.txt /out/answer.txt | grep -c hello > /logs/verifier/reward.txt\n"
_SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
_COLLECT = f'{_SEPARATE}[[verifier.collect]]\ncommand = "mkdir -p /out && cp answer.txt /out"\n'
_SECOND = f"{TEST}ls given.txt prepared two /tests/shared.sh && echo 0.5 > /logs/verifier/reward.txt\n"
_LIST = 'network_mode = "allowlist"\nallowed_hosts = ["pypi.example.org"]\n'
CASES = {
    "Dockerfile": HarborCase(
        HarborFolder('[environment]\nworkdir = "/work"\n', {**one_step().files, "environment/Dockerfile": "FROM small:1\n"}),
        [WRITE], 1.0, "echo hello > /work/answer.txt",
    ),
    "image, variables, failing script": HarborCase(
        one_step('[environment.env]\nNAME = "${HARBOR_CASE:-world}"\n[verifier.env]\nLEAST = "1"\n', _VARIABLES),
        ['[ "$NAME" = world ] && echo 0.75 > /work/seen'], 0.75,
    ),
    "steps, mean": HarborCase(two_steps(), ["touch /work/one", "true"], 0.625),
    "steps, the last counts": HarborCase(
        two_steps('multi_step_reward_strategy = "final"\n', **{
            "steps/two/workdir/given.txt": "given\n", "steps/two/workdir/setup.sh": "touch prepared\n",
            "tests/shared.sh": "# shared\n", "steps/two/tests/test.sh": _SECOND,
        }),
        ["true", "touch /work/two"], 0.5,
    ),
    "steps, one below its least": HarborCase(two_steps(of_each="min_reward = 0.5\n"), ["true", "touch /work/two"], 0.25),
    "separate": HarborCase(
        one_step(_SEPARATE, _ARTIFACTS, 'artifacts = ["/out"]\n'),
        ["mkdir /out; echo hello | tee /out/answer.txt > /logs/artifacts/note.txt"], 2.0,
        f"{FORGED}; mkdir -p /tests; echo hello > /tests/answer.txt",
    ),
    "separate image": HarborCase(
        one_step(_COLLECT, "", 'artifacts = ["/out/answer.txt"]\n', **{"tests/Dockerfile": "FROM small:2\n"}),
        [WRITE], 1.0, FORGED,
    ),
    "allow-list": HarborCase(one_step(_LIST), [WRITE], 1.0),
    "bad reward.json": HarborCase(
        one_step(test=f"{TEST}cd /logs/verifier; echo 1 > reward.txt; : > reward.json\n"), [WRITE], None
    ),
    "NaN": HarborCase(one_step(test=f"{TEST}echo '{{\"reward\": NaN}}' > /logs/verifier/reward.json\n"), [WRITE], None),
    "time-out of the agent": HarborCase(
        one_step("[agent]\ntimeout_sec = 5\n"), [f"{WRITE}; sleep 60; rm /work/answer.txt"], 1.0
    ),
    "time-out of the verifier": HarborCase(
        one_step("[verifier]\ntimeout_sec = 1\n", f"{TEST}sleep 60\n{GRADE}"), [WRITE], None
    ),
    "a reward file of the agent": HarborCase(one_step(test=_IF_RIGHT), [WRITE], 1.0, FORGED),
    "a writer in the background": HarborCase(
        one_step(), ["echo no > /work/answer.txt"], 0.0, f"(while :; do {FORGED}; done) > /dev/null 2>&1 &"
    ),
    "a link in the place of the logs": HarborCase(
        one_step(), ["true"], 0.0, f"cp -r /logs /x; rm -rf /logs; ln -s /x /logs; {FORGED}"
    ),
    "failing healthcheck": HarborCase(
        one_step('[environment.healthcheck]\ncommand = "[ -e /healthy ]"\nretries = 2\ninterval_sec = 0.1\n'), [WRITE], None
    ),
}  # fmt: skip
"""Sixteen folders."""
