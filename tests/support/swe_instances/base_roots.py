"""Root file systems that the images of instances begin with, one for each language."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.sandbox.build_once import build_once
from tests.support.debian_packages import debian_program
from tests.support.small_roots import python_root
from tests.support.swe_instances.releases import CACHED

PYTEST = ("pytest==8.3.5", "pluggy==1.5.0", "iniconfig==2.1.0", "packaging==25.0")
TAPE = "tape@5.9.0"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/lib/go/bin", "HOME": "/root", "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1", "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOCACHE": "/tmp/go", "CGO_ENABLED": "0",
}  # fmt: skip
COMPILED = ("testing", "encoding/json", "database/sql", "net/http/httptest", "text/template")
_FORMAT = 2
"""Number in the cache's names; raise it when what is made changes."""
CRATES = "usr/share/cargo/registry"
OPTIONAL_CRATES = {"serde": "1.0.999", "no-panic": "0.1.999"}
"""Empty crates. Cargo looks for what a crate may depend on, also where a run of tests does not use it."""
ACTIVATE = "conda() { :; }\n"
"""Environments of the families are conda's. Here the image's Python is the only one."""


def base_root(language: str) -> Path:
    """Return the folder. It is made once on a machine."""
    more = {"python": lambda root: None, "javascript": _add_node, "go": _add_go, "rust": _add_rust}[language]

    def fill(folder: Path) -> None:
        root = python_root(folder / "root")
        _add(root, Path(shutil.which("git") or debian_program("git", "usr/bin/git")), "usr/bin/git")
        _add_pytest(root)
        _write(root / "opt/miniconda3/bin/activate", ACTIVATE)
        more(root)

    return build_once(CACHED / f"base-{language}-{_FORMAT}", fill) / "root"


def _add_pytest(root: Path) -> None:
    packages = root / "usr/lib/python3/dist-packages"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    subprocess.run([*pip, "--target", str(packages), *PYTEST], check=True)
    shutil.rmtree(packages / "bin")
    _write(
        root / "usr/bin/pytest", "#!/usr/bin/python3\nimport pytest\nraise SystemExit(pytest.console_main())\n", 0o755
    )
    (root / "usr/bin/python").symlink_to("python3")


def _add_node(root: Path) -> None:
    found = shutil.which("node")
    _add(root, Path(found) if found else debian_program("nodejs", "usr/bin/node"), "usr/bin/node")
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(root), TAPE]
    subprocess.run(npm, check=True, stdout=subprocess.DEVNULL)


def _add_go(root: Path) -> None:
    go = shutil.which("go")
    library = (
        Path(go).resolve().parents[1] if go else debian_program("golang-1.19-go", "usr/lib/go-1.19/bin/go").parents[1]
    )
    left_out = shutil.ignore_patterns("testdata", "test", "doc", "misc", "api", "*_race", "*_dynlink", "cmd")
    shutil.copytree(library, root / "usr/lib/go", ignore=left_out)
    # The standard library compiled, as images have it: every run of tests would do this anew, in 5 s of CPU time.
    settings = {name: ENVIRONMENT[name] for name in ("GOFLAGS", "GOPROXY", "CGO_ENABLED")}
    settings |= {
        "GOROOT": str(root / "usr/lib/go"),
        "GOCACHE": str(root) + ENVIRONMENT["GOCACHE"],
        "PATH": os.environ["PATH"],
    }
    subprocess.run([root / "usr/lib/go/bin/go", "build", *COMPILED], env=settings, check=True)


def _add_rust(root: Path) -> None:
    """Add this machine's compiler, and the linker with which it makes programs."""
    missing = [name for name in ("cargo", "rustc", "gcc", "ld") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"an instance in Rust needs {', '.join(missing)}")
    toolchain, linker = Path(_said("rustc", "--print", "sysroot")), Path(_said("gcc", "-print-libgcc-file-name")).parent
    for name in ("cargo", "rustc"):
        _add(root, toolchain / "bin" / name, f"usr/bin/{name}")
    for library in (toolchain / "lib").glob("lib*.so*"):
        shutil.copy2(library, root / "usr/lib" / library.name)
    left_out = shutil.ignore_patterns("etc", "wasm-*", "rust-objcopy")
    shutil.copytree(toolchain / "lib/rustlib", root / "usr/lib/rustlib", ignore=left_out)
    for program, place in (("gcc", "usr/bin/cc"), ("ld", "usr/bin/ld")):
        _add(root, Path(shutil.which(program) or ""), place)
    for name in ("collect2", "lto-wrapper"):
        _add(root, linker / name, str((linker / name).relative_to("/")))
    # What a link of the C library needs. Each place is the one that gcc and the library's own linker scripts name.
    found = [*linker.glob("*.o"), *linker.glob("libgcc*"), *linker.glob("liblto_plugin.so")]
    system = Path(_said("gcc", "-print-file-name=crt1.o")).resolve().parent
    found += system.glob("*crt*.o")
    scripts, empty = ("libc.so", "libm.so"), ("libc_nonshared.a", "libdl.a", "libpthread.a", "librt.a", "libutil.a")
    found += [system / name for name in scripts + empty]
    found += [Path("/lib", system.name, name) for name in ("libc.so.6", "libm.so.6", "libmvec.so.1", "libgcc_s.so.1")]
    for path in found:
        place = root / path.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)
    _write(
        root / "root/.cargo/config.toml",
        f'[source.crates-io]\nreplace-with = "image"\n[source.image]\ndirectory = "/{CRATES}"\n',
    )
    for name, version in OPTIONAL_CRATES.items():
        crate = root / CRATES / name
        _write(crate / "Cargo.toml", f'[package]\nname = "{name}"\nversion = "{version}"\n')
        _write(crate / "src/lib.rs", "")
        _write(crate / ".cargo-checksum.json", '{"files": {}}')


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _add(root: Path, program: Path, place: str) -> None:
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, root / place)
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for found in {word for word in listed.split() if word.startswith("/") and not word.endswith(":")}:
        library = root / found.lstrip("/")
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, library)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
