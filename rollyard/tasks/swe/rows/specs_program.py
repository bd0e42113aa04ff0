"""Program that tells how swebench 4.1.0 and swesmith 0.0.9 test a row: one question and one answer a line, in JSON.

It runs in an environment with these packages and imports nothing of Rollyard. At their import the packages ask for much that
plays no part in this, such as docker and datasets; modules without content take its place.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from typing import Any

_EMPTY = ("datasets", "docker", "docker.models", "docker.models.containers", "dotenv", "ghapi", "ghapi.all", "requests")
_BARE = ("swebench", "swebench.harness", "swebench.harness.test_spec", "swesmith")
"""Packages whose own `__init__` would import all of the package."""


class EmptyModule(types.ModuleType):
    """Module in which each name is a class without content."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def swe_bench(row: dict[str, Any]) -> dict[str, Any]:
    specs = importlib.import_module("swebench.harness.test_spec.test_spec")
    parsers = importlib.import_module("swebench.harness.log_parsers")
    constants = importlib.import_module("swebench.harness.constants")
    repo, version = row["repo"], row["version"]
    if repo not in specs.MAP_REPO_VERSION_TO_SPECS:
        return {"refused": f"swebench 4.1.0 does not know how {repo} is tested"}
    if version not in specs.MAP_REPO_VERSION_TO_SPECS[repo]:
        return {"refused": f"swebench 4.1.0 does not know how version {version} of {repo} is tested"}
    if repo in constants.FAIL_ONLY_REPOS:
        return {"refused": f"the logs of {repo} name failures alone, and a test that never ran would pass"}
    script = specs.make_eval_script_list(
        row,
        specs.MAP_REPO_VERSION_TO_SPECS[repo][version],
        "testbed",
        "/testbed",
        row["base_commit"],
        row["test_patch"],
    )
    made = specs.TestSpec(
        instance_id=row["instance_id"], repo=repo, version=version, repo_script_list=[], env_script_list=[],
        eval_script_list=script, arch="x86_64", FAIL_TO_PASS=[], PASS_TO_PASS=[], language="", docker_specs={},
        namespace="swebench",
    )  # fmt: skip
    parser = parsers.MAP_REPO_TO_PARSER[repo].__name__
    return {"script": made.eval_script, "log_parser": parser, "image": made.instance_image_key}


def swe_smith(row: dict[str, Any]) -> dict[str, Any]:
    profiles = importlib.import_module("swesmith.profiles")
    python = importlib.import_module("swesmith.profiles.python")
    try:
        profile = profiles.registry.get_from_inst(row)
    except KeyError:
        return {"refused": f"swesmith 0.0.9 has no profile of {row.get('repo', row['instance_id'])}"}
    if not isinstance(profile, python.PythonProfile):
        return {
            "refused": "the family names its failing tests without their files, so they cannot be hidden from the agent"
        }
    profile.arch = "x86_64"
    command, _ = profile.get_test_cmd(row)
    owner = next(c for c in type(profile).__mro__ if "log_parser" in vars(c))
    return {
        "script": f"{command}\n",
        "log_parser": owner.__name__,
        "image": profile.image_name,
        "seconds": float(profile.timeout),
    }


def main() -> None:
    for name in _EMPTY:
        sys.modules[name] = EmptyModule(name)
    for name in _BARE:
        package, found = types.ModuleType(name), importlib.util.find_spec(name)
        assert found is not None
        package.__path__ = found.submodule_search_locations or []
        sys.modules[name] = package
    families = {"swe-bench": swe_bench, "swe-smith": swe_smith}
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = families[question["family"]](question["row"])
        except Exception as error:  # noqa: BLE001 - the boundary to code that is not ours
            answer = {"refused": f"the family's package fails: {type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
