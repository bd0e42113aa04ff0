"""User names as Slurm shows them, some by number and some by name."""

from __future__ import annotations

import pwd


def known_user(user: str) -> str:
    """`uid 0 (root)`, from a uid or a name; a user unknown to this machine and an empty text stay as they are."""
    if not user:
        return ""
    try:
        found = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        return f"uid {user}" if user.isdecimal() else f"user {user}"
    return f"uid {found.pw_uid} ({found.pw_name})"
