"""The variables that a script exports in a container, as it prints them itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping

PRINTED = b"\nrollyard: the variables follow\n"
"""Line between the output of the script and the variables."""
_FILE = "/.singularity.d/env/91-environment.sh"
DEFINITION_VARIABLES = {
    **{f"{name}_ENVIRONMENT": _FILE for name in ("APPTAINER", "SINGULARITY")},
    **{f"{name}_LABELS": "/dev/null" for name in ("APPTAINER", "SINGULARITY")},
}
"""Variables of %post. What it writes into the file holds as if it stood at the end of %environment."""
_OF_THE_SHELL = ("PWD", "OLDPWD", "SHLVL", "_", "APT_CONFIG")


def printing(script: str) -> str:
    """Return the script, and what prints the variables at its end."""
    line = PRINTED.decode().strip()
    return f"{script}\nif [ -f {_FILE} ]; then . {_FILE}; fi\necho; echo '{line}'; exec cat /proc/self/environ\n"


def exported(listed: bytes, given: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return all variables of the image. `listed`: what the script has printed. `given`: the variables with which it was
    started; `before`: those that the image had."""
    pairs = (one.partition("=")[::2] for one in listed.decode("utf-8", "surrogateescape").split("\0") if "=" in one)
    return {
        name: value
        for name, value in pairs
        if name not in _OF_THE_SHELL and (name in before or given.get(name) != value)
    }
