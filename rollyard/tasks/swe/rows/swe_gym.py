"""SWE-Gym: the classic fields of SWE-bench for eleven other repositories.

How they are tested is in a fork of SWE-bench (SWE-Gym/SWE-Bench-Package) that no registry has; the table has its commands.
"""

from __future__ import annotations

import re

from rollyard.tasks.rows.dataset_row import DatasetRow, RowRefused
from rollyard.tasks.swe.rows.bash_text import heard_after
from rollyard.tasks.swe.rows.patches import changed_paths
from rollyard.tasks.swe.rows.row import EvalSpecs, Fields, registry_image, statement

Version = tuple[int, ...]
_MYPY = "python -m pip install -r test-requirements.txt; python -m pip install -e .; "
_CONAN = "; ".join(f"python -m pip install -r conans/requirements{part}.txt" for part in ("", "_server", "_dev"))
_CYTHON = "echo 'cython<3' > /tmp/constraint.txt; export PIP_CONSTRAINT=/tmp/constraint.txt; "
_DVC = (
    'python -m pip install --upgrade pip wheel GitPython; python -m pip install "cython<3.0.0" && '
    "python -m pip install --no-build-isolation pyyaml==5.4.1; "
    "python -m pip install git+https://github.com/iterative/mock-ssh-server.git || true; "
    "python -m pip install -r tests/requirements.txt || true; python -m pip install -r test-requirements.txt || true; "
    'python -m pip install -e ".[tests,dev,all_remotes,all,testing]";'
)
_HYDRA = "pip install -r requirements/dev.txt; pip install -e .;"
_PANDAS = "python -m pip install -ve . --no-build-isolation -Ceditable-verbose=true; pip uninstall pytest-qt -y;"
_COMMANDS: dict[str, list[tuple[Version, str, str]]] = {
    "bokeh/bokeh": [
        ((3,), "python -m pip install -e .; python -m pip install bokeh_sampledata;", "pytest -rA -n0"),
        (
            (),
            'pip install "setuptools<66" "jinja2<3.1"; printf "1\\n" | python setup.py develop; bokeh sampledata;',
            "pytest -rA -n0",
        ),
    ],
    "conan-io/conan": [
        ((2, 1), _CONAN, "pytest -n0 -rA"),
        ((2,), f"{_CYTHON}{_CONAN}", "pytest -n0 -rA"),
        ((1, 60), _CONAN, "pytest -n0 -rA"),
        ((), f"{_CYTHON}{_CONAN}", "pytest -n0 -rA"),
    ],
    "dask/dask": [((), "python -m pip install --no-deps -e .", "pytest -n0 -rA  --color=no")],
    "facebookresearch/hydra": [
        ((1, 3), _HYDRA, "pytest -rA --tb=long"),
        (
            (),
            "sed -i 's|isort@git+git://github.com/timothycrosley/isort|isort@git+https://github.com/timothycrosley/isort|g' "
            'requirements/dev.txt; { tail -n1 requirements/requirements.txt | grep -q "." && echo ""; } >> '
            'requirements/requirements.txt; echo "pip==24.0" >> requirements/requirements.txt;pip install "pip==24.0"; '
            + _HYDRA,
            "pytest -rA --tb=long",
        ),
    ],
    "getmoto/moto": [((), "make init", "pytest -n0 -rA")],
    "iterative/dvc": [
        ((3, 4), _DVC, "pytest -rA"),
        ((), f'{_DVC} python -m pip install "numpy<=1.20"; python -m pip install "pytest<8";', "pytest -rA"),
    ],
    "modin-project/modin": [
        ((0, 20), "python -m pip install -e .;", "pytest -n0 -rA"),
        ((), "python -m pip install -e .; python -m pip install numpy==1.23.1 protobuf==3.20.1;", "pytest -n0 -rA"),
    ],
    "pandas-dev/pandas": [
        ((2, 2), _PANDAS, "pytest -rA --tb=long"),
        ((), f"python -m pip install 'numpy<2'; {_PANDAS}", "pytest -rA --tb=long"),
    ],
    "project-monai/monai": [
        (
            (),
            "sed -i '/^git+https:\\/\\/github.com\\/Project-MONAI\\//d' requirements-dev.txt; python -m pip install "
            "types-pkg-resources==0.1.3 pytest; pip install -r requirements-dev.txt;python setup.py develop;",
            "pytest -rA ",
        )
    ],
    "pydantic/pydantic": [
        (
            (),
            'export PATH="$HOME/.local/bin:$PATH"; pdm add pre-commit; make install;',
            "pytest -rA --tb=short -vv -o console_output_style=classic --no-header",
        )
    ],
    "python/mypy": [
        ((1, 7), f"{_MYPY}hash -r", "pytest -rA -k"),
        ((1,), f"{_MYPY}hash -r", "pytest -n0 -rA -k"),
        ((), f"{_MYPY}pip install pytest pytest-xdist; hash -r", "pytest -n0 -rA -k"),
    ],
}
"""Repository -> first version, installation before the tests, and command of the tests; the newest versions first."""
_NOT_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")


def has_repository(row: DatasetRow) -> bool:
    return str(row.get("repo", "")).lower() in _COMMANDS


def convert(row: DatasetRow, _: EvalSpecs) -> Fields:
    repo, patch = row.text("repo").lower(), row.text("test_patch")
    install, command = _commands(repo, row.text("version"))
    if repo == "python/mypy":
        cases = " or ".join(re.findall(r"\[case ([^\]]+)\]", patch))
        command = f'{command} "{cases}"'
    else:
        command = " ".join([command, *(path for path in changed_paths(patch) if not path.endswith(_NOT_TESTS))])
    before = ["source /opt/miniconda3/bin/activate", "conda activate testbed"]
    if repo == "conan-io/conan":
        before.append("export PYTHONPATH=${PYTHONPATH:-}:$(pwd)")
    name = row.text("instance_id").lower().replace("__", "_s_")
    return {
        "statement": statement(row),
        "image": registry_image(f"xingyaoww/sweb.eval.x86_64.{name}:latest"),
        "repository": "/testbed",
        "base_commit": row.text("base_commit"),
        "script": heard_after("\n".join([*before, install]), command),
        "log_parser": "pytest-word",
        "fail_to_pass": row.names("FAIL_TO_PASS"),
        "pass_to_pass": row.names("PASS_TO_PASS"),
        "test_patch": patch,
        "reference_patch": row.text("patch"),
    }


def _commands(repo: str, version: str) -> tuple[str, str]:
    numbers = tuple(int(part) for part in re.findall(r"\d+", version))
    for first, install, command in _COMMANDS.get(repo, []):
        if numbers >= first:
            return install, command
    raise RowRefused(f"{repo} is not a repository of SWE-Gym; these are {', '.join(_COMMANDS)}")
