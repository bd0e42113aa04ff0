"""`rollyard tasks import harbor` and `rollyard tasks list`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollyard.cli.main import cli
from rollyard.images.built_images import BuiltImages
from rollyard.kinds.harbor_task import HarborTask
from rollyard.kinds.task import Task
from tests.support.harbor_folders import HarborFolder, one_step, two_steps

DOCKERFILE = "FROM scratch\nENV KEY=value\n"


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    named = one_step(
        '[task]\nname = "org/named"\n[metadata]\ndifficulty = "hard"\ndays = 2024-01-01\n[verifier.env]\nKEY = "${TOKEN}"\n',
        **{"tests/data.bin": "x", "environment/note.txt": "note"},
    )
    named.write(tmp_path / "set" / "named")
    (tmp_path / "set" / "named" / "tests" / "data.bin").write_bytes(b"\xff\x00")
    for name in ("one", "two"):  # with the same image
        texts = {**one_step().files, "environment/Dockerfile": DOCKERFILE}
        HarborFolder("", texts).write(tmp_path / "set" / "built" / name)
    one_step("[agent]\ntimeout_sec = -1\n").write(tmp_path / "set" / "wrong")
    one_step("gpus = 1\n", **{"environment/docker-compose.yaml": "services: {}\n"}).write(tmp_path / "set" / "gpu")
    return tmp_path / "set"


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["tasks", *map(str, words)])


def test_folders_become_tasks_and_refused_ones_are_named(folders: Path, tmp_path: Path) -> None:
    out, images = tmp_path / "tasks.jsonl", tmp_path / "images"
    done = invoke("import", "harbor", folders, "-o", out, "--images", images, "--env", "TOKEN=abc")
    assert done.exit_code == 0, done.output
    tasks = [Task.model_validate_json(line) for line in out.read_text().splitlines()]
    built = {task.image for task in tasks[:2]}
    assert built == {f"oci-archive:{path}" for path in images.glob("*.tar")}, done.output
    assert len(built) == 1
    assert tasks[2].image == "docker://small:1"
    assert tasks[2].metadata == {"harbor": "org/named", "difficulty": "hard"}
    named = tasks[2].fields_as(HarborTask)
    assert named.content("tests/data.bin") == b"\xff\x00"
    assert [*named.below("environment/")] == [("note.txt", b"note", False)]
    assert named.env(named.config.verifier.env) == {"KEY": "abc"}
    said = done.stderr
    assert f"{folders}/gpu: refused: " in said
    assert "`environment.gpus` is not supported; environment/docker-compose.yaml is not supported" in said
    assert f"{folders}/wrong: refused: task.toml: agent.timeout_sec: " in said
    assert said.splitlines()[-2:] == ["      3 converted", "      2 refused"]


def test_images_with_a_name_are_stored_in_the_shared_folder_once(folders: Path, tmp_path: Path) -> None:
    words = ("import", "harbor", folders / "built", "--tag", "bench", "--shared", tmp_path)
    done = invoke(*words)
    tasks = [Task.model_validate_json(line) for line in done.stdout.splitlines()]
    (built,) = BuiltImages(tmp_path).images()
    assert {task.image for task in tasks} == {built.image.text}, done.output
    assert built.image.name == "bench"
    assert "images to build" not in invoke(*words).stderr
    assert "in place of" in invoke(*words, "--images", tmp_path).stderr


def test_a_second_import_builds_nothing(folders: Path, tmp_path: Path) -> None:
    words = ("import", "harbor", folders / "built" / "one", "--images", tmp_path / "images")
    first, second = invoke(*words), invoke(*words)
    assert "images to build: 1," in first.stderr
    assert "built" not in second.stderr.replace(str(tmp_path), "")
    assert first.stdout == second.stdout
    assert json.loads(first.stdout)["kind"] == "harbor"


def test_an_image_that_cannot_be_built_refuses_its_folders(folders: Path, tmp_path: Path) -> None:
    (folders / "built" / "one" / "environment" / "Dockerfile").write_text("FROM scratch\nCOPY no-such-file /\n")
    done = invoke("import", "harbor", folders / "built", "--images", tmp_path / "images")
    assert done.exit_code == 0
    assert "one: refused: its image cannot be built: " in done.stderr
    assert "no-such-file" in done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_the_list(folders: Path) -> None:
    done = invoke("list", folders, "--env", "TOKEN=abc")
    lines = {line.split()[0].removeprefix(f"{folders}/"): line.split()[1:] for line in done.stdout.splitlines()[1:]}
    assert lines["built/one"] == ["one", "Dockerfile", "fresh"]
    assert lines["named"] == ["org/named", "docker://small:1", "fresh"]
    assert "gpus" in " ".join(lines["gpu"])


def test_places_of_verifiers(folders: Path, tmp_path: Path) -> None:
    own = {**one_step().files, "tests/Dockerfile": DOCKERFILE}
    HarborFolder('[environment]\ndocker_image = "a"\n[verifier]\nenvironment_mode = "separate"\n', own).write(
        folders / "own"
    )
    two_steps().write(folders / "steps")
    done = invoke("import", "harbor", folders / "own", folders / "steps", "--images", tmp_path / "images")
    task = Task.model_validate_json(done.stdout)
    assert task.evaluator_image == f"oci-archive:{next((tmp_path / 'images').glob('*.tar'))}"
    assert task.fields_as(HarborTask).is_bundled
    assert [name for name in task.fields_as(HarborTask).files if name.startswith("tests/")] == []
    assert f"{folders}/steps: refused: " in done.stderr
    shared = invoke("import", "harbor", folders / "steps", "--verifier", "shared")
    assert Task.model_validate_json(shared.stdout).fields["verifier"] == "shared"
    said = invoke("list", folders / "own", folders / "steps").stdout.splitlines()[1:]
    assert [line.split()[-1] for line in said] == ["separate", "shared"]


def test_what_is_missing_is_said(folders: Path, tmp_path: Path) -> None:
    assert "TOKEN a value" in invoke("import", "harbor", folders / "named").stderr
    assert "--images" in invoke("import", "harbor", folders / "built").stderr
    (tmp_path / "empty").mkdir()
    assert "no task.toml" in invoke("list", tmp_path / "empty").output


def test_no_file_outside_of_a_folder_is_packed(tmp_path: Path) -> None:
    """A link to it would put a secret into the task. A link inside of the folder is packed as the file."""
    (tmp_path / "secret").write_text("top secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "Dockerfile").write_text("FROM scratch\n")
    links = {
        "tests/s.txt": tmp_path / "secret", "solution/rel": "../../secret", "instruction.md": tmp_path / "secret",
        "environment/key": tmp_path / "secret", "task.toml": tmp_path / "secret", "steps": tmp_path / "secrets",
    }  # fmt: skip
    for number, (name, target) in enumerate(links.items()):
        link = one_step().write(tmp_path / "set" / str(number)) / name
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    built = HarborFolder("", one_step().files).write(tmp_path / "set" / "built")
    (built / "environment").symlink_to(tmp_path / "secrets")
    good = one_step().write(tmp_path / "set" / "good")
    (good / "tests" / "link").symlink_to("../tests/test.sh")
    (good / "tests" / "nothing").symlink_to("absent")
    done = invoke("import", "harbor", tmp_path / "set", "--images", tmp_path / "images")
    assert done.exit_code == 0, done.output
    files = Task.model_validate_json(done.stdout).fields_as(HarborTask).files
    assert files["tests/link"] == files["tests/test.sh"]
    for number, name in enumerate(links):
        assert f"set/{number}: refused: {name} is a link that leads out of the folder" in done.stderr
    assert "built: refused: environment is a link that leads out" in done.stderr
    assert "secret" not in done.stdout


HOSTILE = {
    "digits": (f'memory = "{"9" * 400}G"\n', "write a size such as 2G"),
    "two points": ('memory = "1.2.3G"\n', "write a size such as 2G"),
    "petabytes": ('memory = "999999999G"\n', "memory_mb"),
    "a long number": (f"memory_mb = {'9' * 5000}\n", "is no TOML"),
    "depth": (f"tpu = {'[' * 5000}{']' * 5000}\n", "inside of one another"),
    "dots": (f"tpu{'.a' * 5000} = 1\n", "refused"),
}


def test_no_folder_ends_the_import_of_the_others(tmp_path: Path) -> None:
    for name, (config, _) in HOSTILE.items():
        one_step(config).write(tmp_path / "set" / name)
    loop = one_step().write(tmp_path / "set" / "loop")
    (loop / "tests" / "loop").symlink_to("loop")
    one_step().write(tmp_path / "set" / "good")
    done, listed = invoke("import", "harbor", tmp_path / "set"), invoke("list", tmp_path / "set")
    assert (done.exit_code, listed.exit_code, len(done.stdout.splitlines())) == (0, 0, 1), done.output
    for name, why in {**{name: why for name, (_, why) in HOSTILE.items()}, "loop": "in a circle"}.items():
        line = next(line for line in done.stderr.splitlines() if f"set/{name}: refused" in line)
        assert why in line, line
