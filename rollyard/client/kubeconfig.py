"""The server's address and the client's token, from a standard kubeconfig."""

from __future__ import annotations

import base64
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import yaml

from rollyard.core.errors import BadRequest
from rollyard.wire.files import EndpointFile

VARIABLE = "ROLLYARD_KUBECONFIG"


@dataclass(frozen=True)
class Context:
    """Address of a server, and token of a client."""

    url: str
    ca_pem: str | None
    token: str
    namespace: str
    endpoint_file: Path | None
    """`endpoint.json` beside the kubeconfig. Each new server writes its URL there; the kubeconfig's URL may be older.
    None if the file does not exist."""
    file: Path | None = None
    """The kubeconfig; None if the context was made without one."""

    def current_token(self) -> str:
        """Read the token again. Raises BadRequest."""
        return self.token if self.file is None else load_context(self.file).token

    def current_url(self) -> str:
        if self.endpoint_file is not None:
            try:
                return EndpointFile.model_validate_json(self.endpoint_file.read_bytes()).url
            except (OSError, ValueError):
                pass  # `endpoint.json` cannot be read or is not Rollyard's: use the kubeconfig's URL
        return self.url

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.ca_pem)


def load_context(path: Path | str | None = None) -> Context:
    """Load a kubeconfig. Default: the file that $ROLLYARD_KUBECONFIG names; without the variable, ~/.rollyard/config.

    Raises BadRequest if the file cannot be read or is not a kubeconfig with a token.
    """
    given = Path(path or os.environ.get(VARIABLE) or Path.home() / ".rollyard" / "config")
    try:
        file = given.resolve(strict=True)
        config = yaml.safe_load(file.read_text())
        return _context(config, file)
    except OSError as error:
        hint = f"start one with `rollyard serve --data DIR`, or name its file with --kubeconfig or {VARIABLE}"
        raise BadRequest(f"no kubeconfig: {given}: {error.strerror}; {hint}") from None
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, StopIteration, ValueError) as error:
        raise BadRequest(f"{given} is not a kubeconfig with a token: {error!r}") from None


def _context(config: dict[str, object], file: Path) -> Context:
    def named(section: str, name: str) -> dict[str, str]:
        entries = config[section]
        if not isinstance(entries, list):
            raise TypeError(f"{section} must be a list")
        found: dict[str, str] = next(e[section.rstrip("s")] for e in entries if e["name"] == name)
        return found

    context = named("contexts", str(config["current-context"]))
    cluster, user = named("clusters", context["cluster"]), named("users", context["user"])
    authority = cluster.get("certificate-authority-data")
    beside = file.with_name("endpoint.json")
    return Context(
        url=cluster["server"],
        ca_pem=base64.b64decode(authority).decode() if authority else None,
        token=user["token"],
        namespace=context.get("namespace", "default"),
        endpoint_file=beside if beside.exists() else None,
        file=file,
    )


def write_token(file: Path, token: str) -> None:
    """Replace the token of the current context's user in a kubeconfig. Raises OSError."""
    config = yaml.safe_load(file.read_text())
    context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
    user = next(u["user"] for u in config["users"] if u["name"] == context["user"])
    user["token"] = token
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
        written.write(yaml.safe_dump(config, sort_keys=False))
    partial.replace(file)
