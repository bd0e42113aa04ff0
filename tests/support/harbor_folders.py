"""Task folders of Harbor, in the format's own words, and what agents do in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TEST = "#!/bin/bash\n"
GRADE = (
    TEST
    + 'grep -qx "hello world" /work/answer.txt && r=1 || r=0\necho "graded $r"\necho $r > /logs/verifier/reward.txt\n'
)
"""Test script that wants one line in a file."""
WRITE = "mkdir -p /work; echo 'hello world' > /work/answer.txt"
"""Right work."""
FORGED = "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json"


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


def one_step(config: str = "", test: str = GRADE, **files: str) -> HarborFolder:
    """Return a folder with an image that it does not build."""
    image = '[environment]\ndocker_image = "small:1"\nworkdir = "/work"\n'
    texts = {"instruction.md": "Write hello world.\n", "tests/test.sh": test}
    return HarborFolder(image + config, {**texts, "solution/solve.sh": f"{TEST}{WRITE}\n", **files})
