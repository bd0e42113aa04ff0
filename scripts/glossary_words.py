"""Words of the glossary with one meaning, and the names and phrases in which they would mean something else."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_MEMBER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Word:
    """All patterns are searched. Names are compared in snake case."""

    word: str
    """The row of the glossary."""
    advice: str
    """End of a sentence: the meaning, and the words for other things."""
    name: str
    """Pattern of names that are wrong everywhere."""
    bare_name: str
    """Pattern of names that are wrong in `absent_from`."""
    absent_from: tuple[str, ...]
    """Folders whose code has nothing of the word's meaning."""
    phrase: str
    """Pattern of wrong phrases, in code, comments and documentation."""
    allowed: Mapping[str, str] = field(default_factory=dict)
    """Folder or name -> reason why it may have the word with another meaning."""


WORDS = (
    Word(
        "stage",
        "is INIT, RUN or EVAL of a rollout: images are prefetched, tensors are received, updates and builds have steps",
        name=r"(^|_)(staged|staging|stagers?)(_|$)|(build|image|update|weights)_stages?$|^stage_(image|layer|python|transfer)",
        bare_name=r"(^|_)stages?(_|$)",
        absent_from=(
            "rollyard/engine", "rollyard/gateway", "rollyard/host", "rollyard/images", "rollyard/model_folder",
            "rollyard/sandbox", "rollyard/sandbox_agent", "rollyard/slurm", "rollyard/tokens",
        ),
        phrase=r"\b(un)?(staged|staging)\b|\bstagePython\b",
        allowed={
            "rollyard/image_builds": "Dockerfiles and definition files of Apptainer call their parts stages",
        },
    ),
    Word(
        "snapshot",
        "is the files that a sandbox has changed: what Slurm shows is a listing",
        name=r"(^|_)(job|queue|slurm|object|tree)_snapshots?(_|$)",
        bare_name=r"(^|_)snapshots?(_|$)",
        absent_from=(
            "rollyard/controller", "rollyard/engine", "rollyard/image_builds", "rollyard/images", "rollyard/reconcilers",
            "rollyard/server/batches", "rollyard/server_process/job", "rollyard/server/routing", "rollyard/server/weights",
            "rollyard/slurm", "rollyard/tokens", "simulation",
        ),
        phrase=r"\bsnapshots? of (all |our |the |Slurm's )*(jobs|objects|queue)\b"
        r"|\b(believed|complete|doubted|Slurm|Slurm's) snapshots?\b",
    ),
    Word(
        "agent",
        "is the model's: write node agent or sandbox agent whole",
        name=r"(^|_)(connected|waiting|lost)_agents?(_|$)",
        bare_name=r"(?<!node_)(?<!sandbox_)(?<!external_)(?<![a-z])agents?(_|$)",
        absent_from=(
            "rollyard/controller", "rollyard/engine", "rollyard/host", "rollyard/image_builds", "rollyard/images",
            "rollyard/reconcilers", "rollyard/sandbox", "rollyard/sandbox_agent", "rollyard/server", "rollyard/slurm",
            "simulation",
        ),
        phrase=r"\b(connected|draining|lost) agents?\b"
        r"|(?<!node )(?<!sandbox )\bagents?'s? (heartbeats?|leases?|allocations?)\b",
    ),
)  # fmt: skip


def wrong_name(name: str, path: str) -> Iterator[str]:
    """Yield what is wrong with a name that the file `path` defines."""
    for word in WORDS:
        if name in word.allowed or _is_below(path, word.allowed):
            continue
        snake = _MEMBER.sub("_", name).lower()
        if re.search(word.name, snake) or (_is_below(path, word.absent_from) and re.search(word.bare_name, snake)):
            yield f"{name}: {word.word} {word.advice}"


def wrong_phrase(line: str, path: str) -> Iterator[str]:
    """Yield what is wrong with a line of the file `path`."""
    for word in WORDS:
        if not _is_below(path, word.allowed) and (found := re.search(word.phrase, line)):
            yield f"{found[0]!r}: {word.word} {word.advice}"


def _is_below(path: str, folders: Mapping[str, str] | tuple[str, ...]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)
