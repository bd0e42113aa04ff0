"""Changes of an agent that count in a fresh sandbox in which a verifier runs."""

from __future__ import annotations

from rollyard.sandbox.snapshot import RestoreRules
from rollyard.tasks.harbor.start_hooks import HOOK_FILES

_RUNNERS = "_?pytest(?:_.*|-.*)?|pluggy(?:-.*)?|iniconfig(?:-.*)?|_?pytest\\.py|py\\.py|nose2?(?:-.*)?|unittest.*"
_PACKAGES = "site-packages|dist-packages|node_modules"
_LEFT_OUT = (
    r"/tests(?:/.*)?",
    r"/logs(?:/verifier(?:/.*)?)?",
    r"/(?:conftest\.py|\.?pytest\.(?:ini|toml)|pyproject\.toml|tox\.ini|setup\.cfg)",
    r"/.*/(?:site|user)customize(?:[./].*)?",
    r"/.*/__pycache__(?:/.*)?",
    r"/etc/ld\.so\.preload",
)
"""The verifier's own places; configuration of pytest above /tests; modules that each Python reads; compiled modules, which may
differ from their source; libraries that each program loads."""
_IMAGE_FIRST = (
    r"/usr(?:/local)?",
    rf"/.*/(?:{_PACKAGES})/(?:{_RUNNERS})(?:/.*)?",
    rf"(?:/usr(?:/local)?)?/(?:s?bin|lib(?:32|64|x32|exec)?)(?!(?:/.*)?/(?:{_PACKAGES})/(?!(?:{_RUNNERS})(?:/|$)))(?:/.*)?",
)
"""Programs and libraries of the system. Packages of Python and Node may change, but for those that run tests."""
_OF_PREFIX = r"/(?:bin/)?(?:pyvenv\.cfg|pybuilddir\.txt)|/lib(?:32|64)?/python3[0-9]+\.zip"
"""Files by which Python finds another library than its own."""
_PROGRAMS = "sh bash dash ash busybox env chmod mkdir rm"
"""Programs that start a verifier."""
RULES = RestoreRules("|".join(_LEFT_OUT), "|".join(_IMAGE_FIRST), _OF_PREFIX, _PROGRAMS, HOOK_FILES)
