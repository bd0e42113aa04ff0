"""Users in one form. Slurm shows some users by number and others by name."""

from __future__ import annotations

import pwd


def known_user(user: str) -> str:
    """Return a user, given by uid or name, in the form `uid 0 (root)`.

    For a user that this machine does not know, return `uid 1234` or `user NAME`. For an empty text return an empty text.
    """
    if not user:
        return ""
    try:
        found = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        return f"uid {user}" if user.isdecimal() else f"user {user}"
    return f"uid {found.pw_uid} ({found.pw_name})"
