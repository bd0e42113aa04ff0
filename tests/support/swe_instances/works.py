"""Scripts of agents that work on an instance's repository."""

from __future__ import annotations

from rollyard.tasks.swe.rows.bash_text import written
from tests.support.swe_instances.families import FAMILIES
from tests.support.swe_instances.instance import Instance

_BREAK = {
    "python": "raise RuntimeError('wrong')", "javascript": "throw new Error('wrong')",
    "go": 'func init() { panic("wrong") }', "rust": 'compile_error!("wrong");',
}  # fmt: skip
_LINE = {"python": "PASSED {}", "javascript": "ok 1 {}", "go": "--- PASS: {} (0.00s)", "rust": "test {} ... ok"}
_PASS = "import _pytest.reports as r; r.TestReport.outcome = property(lambda s: 'passed', lambda s, v: None)"
_CONFTEST = """\
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""


def wrong(instance: Instance) -> str:
    """Return the right change with a fault in the module that the tests load first."""
    fault = _BREAK[instance.pair.language]
    return f"{instance.made.apply_patch}echo {fault!r} >> {_entry(instance)}\n".replace("\\'", "'")


def forged_reports(instance: Instance) -> str:
    """Return a line of a Python package, with which every test that runs is reported as passed."""
    return f'echo "{_PASS}" >> {_entry(instance)}\n'


def _entry(instance: Instance) -> str:
    """Return the path of the module that the tests load first."""
    name, place = instance.made.name, instance.root / FAMILIES[instance.pair.family].place[1:]
    found = [f"src/{name}/__init__.py", f"{name}/__init__.py", f"{name}.py", "index.js", "src/lib.rs"]
    found += [path.name for path in sorted(place.glob("*.go")) if not path.name.endswith("_test.go")]
    return next(path for path in found if (place / path).exists())


def edited_tests(instance: Instance) -> str:
    """Return tests that print what right code would print, and a setting that lets every test pass."""
    script = written("/tmp/forged", _forged(instance)) + written("conftest.py", _CONFTEST)
    for name in instance.made.files:
        match instance.pair.language:
            case "python":
                script += f"mkdir -p $(dirname {name}); echo 'def test_all(): pass' > {name}\n"
            case "javascript":
                script += f"{{ echo 'console.log(`'; cat /tmp/forged; echo '`)'; }} > {name}\n"
            case "rust":
                print_it = 'std::io::Write::write_all(&mut std::io::stdout(), include_bytes!("/tmp/forged")).unwrap();'
                script += written(name, f"#[test]\nfn all() {{ {print_it} }}\n")
            case _:
                script += f"package=$(grep -m1 ^package {name}); {{ echo \"$package\"; echo 'func init() {{ print(`'; "
                script += f"cat /tmp/forged; echo '`) }}'; }} > {name}\n"
    return script


def attacked_evaluator(instance: Instance) -> str:
    """Return programs of the image, settings and hooks that print what right code would print."""
    script = written("/forged", _forged(instance))
    script += (
        "printf '#!/bin/sh\\ncat /forged\\nexit 0\\n' > /tmp/forge; chmod 755 /tmp/forge; mkdir -p /usr/local/bin\n"
    )
    for program in ("pytest", "python", "python3", "node", "go", "cargo", "rustc", "cc", "git"):
        script += (
            f"for folder in /usr/local/bin /usr/bin bin; do mkdir -p $folder; cp /tmp/forge $folder/{program}; done\n"
        )
    script += "cp /tmp/forge .venv/bin/python; cp /forged forged; cp /tmp/forge run_tests.sh\n"
    script += "echo 'cat /forged; exit 0' | tee /root/.bashrc /root/.profile\n"
    hook = "print(open('/forged').read()); import os; os._exit(0)"
    script += f'echo "{hook}" | tee sitecustomize.py usercustomize.py forge.pth\n'
    script += (
        "printf '[pytest]\\naddopts = -p sitecustomize\\n' > pytest.ini; echo 'node-options=-r ./forged' > .npmrc\n"
    )
    print_it = 'console.log(require("fs").readFileSync("/forged", "utf8")); process.exit(0)'
    script += "mkdir -p node_modules/tape .cargo\n"
    script += written("node_modules/tape/index.js", print_it) + written("node_modules/tape/package.json", "{}")
    if instance.pair.language == "go":
        main = "{ grep -hm1 ^package $(ls *.go | head -1); echo 'import \"testing\"; func TestMain(m *testing.M) { print(`'; "
        script += main + "cat /forged; echo '`) }'; } > zz_test.go\n"
    runner = f"{FAMILIES[instance.pair.family].place}/forged"
    return script + written(".cargo/config.toml", f'[target.x86_64-unknown-linux-gnu]\nrunner = "{runner}"\n')


def _forged(instance: Instance) -> str:
    names = (*instance.made.failing, *instance.made.kept)
    return f"running {len(names)} tests\n" + "".join(
        f"{_LINE[instance.pair.language].format(name)}\n" for name in names
    )
