"""Program that prints how the families' own code tests rows, from the files of released packages (`python -I FILE FOLDER`).

One line of JSON comes in with server and row; one goes out with the script, the image and the repository. Modules that the
code imports and does not need here are empty.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from typing import Any


class EmptyModule(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def tell(server: str, row: dict[str, Any]) -> dict[str, Any]:
    if server == "swe-bench":
        spec = importlib.import_module("swebench.harness.utils").make_test_spec(row)
        return {"script": spec.eval_script, "image": spec.image, "lists": [spec.FAIL_TO_PASS, spec.PASS_TO_PASS]}
    code = importlib.import_module(f"resources_servers.{server}.verification")
    if server == "swebench_pro":
        return {"script": code.create_entryscript(row | {"environment_repairs": []})}
    inputs = code.VerificationInputs(
        **{name: row.get(name, "") for name in code.VerificationInputs.__dataclass_fields__ if name in row}
        | (
            {"fail_to_pass": code.as_id_list(row["FAIL_TO_PASS"]), "pass_to_pass": code.as_id_list(row["PASS_TO_PASS"])}
            if server == "scale_swe"
            else {}
        )
        | (
            {"install": row["install_config"]["install"], "test_cmd": row["install_config"]["test_cmd"]}
            if server == "swe_rebench"
            else {}
        )
    )
    return {"script": code.build_eval_script(inputs)}


def main() -> None:
    folder = sys.argv[1]
    sys.path.insert(0, folder)
    for name in (
        "datasets",
        "docker",
        "dotenv",
        "requests",
        "unidiff",
        "tqdm",
        "tqdm.auto",
        "nemo_gym",
        "nemo_gym.sandbox",
    ):
        sys.modules[name] = EmptyModule(name)
    for name, path in (("swebench", "swebench"), ("swebench.harness", "swebench/harness")):
        package = types.ModuleType(name)
        package.__path__ = [f"{folder}/{path}"]
        sys.modules[name] = package
    for line in sys.stdin:
        print(json.dumps(tell(*json.loads(line))))


if __name__ == "__main__":
    main()
