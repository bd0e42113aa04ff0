"""Address of slurmrestd, and the credentials of the user who owns our jobs."""

from __future__ import annotations

import base64
import binascii
import getpass
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rollyard.core.errors import Invalid, SlurmUnreachable

URL_VARIABLE = "ROLLYARD_SLURMRESTD"
TOKEN_FILE_VARIABLE = "ROLLYARD_SLURM_JWT_FILE"
TOKEN_VARIABLE = "SLURM_JWT"


@dataclass(frozen=True, slots=True)
class SlurmrestdAddress:
    """`url`: base of all requests. `socket`: path of a Unix socket; if it is set, the host in `url` is not used."""

    url: str
    socket: str | None = None

    @classmethod
    def parse(cls, text: str) -> SlurmrestdAddress:
        """Parse `unix:/path`, `http://host:6820` or `https://host`. Raises Invalid."""
        kind, _, path = text.partition(":")
        if kind == "unix" and path.startswith("/"):
            return cls("http://slurmrestd", path.removeprefix("//"))
        try:
            parts = urlsplit(text)
            readable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # such as http://[host, and a port that is not a number
            readable = False
        if not readable:
            raise Invalid(
                f"{URL_VARIABLE}={text!r}: write unix:/path/of/slurmrestd.socket, http://host:6820 or https://host"
            )
        return cls(text.rstrip("/"))

    @classmethod
    def of_environment(cls, env: Mapping[str, str]) -> SlurmrestdAddress:
        """Read the address from the environment. Raises Invalid if there is none or it is malformed."""
        text = env.get(URL_VARIABLE, "")
        if not text:
            raise Invalid(
                f"--cluster rest: set {URL_VARIABLE} to the address of slurmrestd, such as unix:/run/slurmrestd.socket or "
                f"http://host:6820. Put its token into the file that {TOKEN_FILE_VARIABLE} names, or into SLURM_JWT"
            )
        return cls.parse(text)

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket is not None else self.url


@dataclass(frozen=True, slots=True)
class SlurmCredentials:
    """Credentials of the user who owns our jobs. `token_file` is read for each request, so its token can be renewed."""

    token: str | None = None
    token_file: Path | None = None

    @classmethod
    def of_environment(cls, env: Mapping[str, str]) -> SlurmCredentials:
        file = env.get(TOKEN_FILE_VARIABLE)
        return cls(env.get(TOKEN_VARIABLE) or None, Path(file) if file else None)

    def read(self) -> str | None:
        """Return the current token; None or an empty text if there is none. On a Unix socket no token is needed,
        because slurmrestd sees the caller's user id there.

        Raises SlurmUnreachable if the file cannot be read or the token has expired.
        """
        token = self.token
        if self.token_file is not None:
            try:
                words = self.token_file.read_text().split()
            except (OSError, UnicodeDecodeError) as error:
                raise SlurmUnreachable(f"no token for slurmrestd: {self.token_file}: {error}") from None
            # the file may contain the output of `scontrol token`: SLURM_JWT=token
            token = words[-1].removeprefix(f"{TOKEN_VARIABLE}=") if words else ""
        expiry = claims(token).get("exp") if token else None
        if isinstance(expiry, int | float) and expiry <= time.time():
            at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(expiry))
            raise SlurmUnreachable(f"the token for slurmrestd expired at {at}; {self.renewal_advice()}")
        return token

    def renewal_advice(self) -> str:
        """Return advice on how to renew an expired token."""
        if self.token_file is not None:
            return f"write a new one to {self.token_file} (scontrol token lifespan=SECONDS prints one); Rollyard reads it again"
        return (
            f"get another one (scontrol token lifespan=SECONDS), write it to a file and name it in {TOKEN_FILE_VARIABLE}: "
            f"Rollyard reads {TOKEN_VARIABLE} once, but the file at each request"
        )

    @staticmethod
    def user(token: str | None) -> str:
        """Return the user name in the token. If there is none, return the user name of this process."""
        found = claims(token) if token else {}
        name = found.get("sun") or found.get("username")
        return name if isinstance(name, str) else getpass.getuser()


def claims(token: str) -> dict[str, object]:
    """Return the claims of a JWT; empty for other text. The signature is not checked here, because Slurm checks it."""
    try:
        payload = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError, binascii.Error):
        return {}
    return found if isinstance(found, dict) else {}
