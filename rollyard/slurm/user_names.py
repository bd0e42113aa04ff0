"""User names as Slurm shows them: some as numbers, some as names."""

from __future__ import annotations

import pwd


def known_user(user: str) -> str:
    """Return `uid 0 (root)` for a uid or a name. A user that this machine does not know, and an empty text, stay unchanged."""
    if not user:
        return ""
    try:
        found = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        return f"uid {user}" if user.isdecimal() else f"user {user}"
    return f"uid {found.pw_uid} ({found.pw_name})"
