"""Names and docstrings: a class name stands once, a docstring opens with a noun or a verb, errors form one tree, and a word
of the glossary has one meaning (`glossary_words`)."""

import ast
import builtins
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this file is run as a script

from scripts.glossary_words import WORDS, wrong_name, wrong_phrase

ROOT = Path(__file__).resolve().parents[1]
OPENING = re.compile(r"(Of|What|Who|So|That)\b")
TREE_LINE = re.compile(r"(?P<bars>[│ ]*[├└]── )(?P<name>\w+)")
ERRORS = Path("rollyard/core/errors.py")
ALLOWED: dict[str, str] = {}
"""Class names that may stand several times, each with the reason."""

Modules = dict[Path, ast.Module]


def main() -> int:
    modules, tests = read("rollyard"), read("tests")
    complaints = [*repeated_classes(modules), *openings({**modules, **tests}), *strange_errors(modules)]
    complaints += [
        *stale_words(),
        *wrong_names({**modules, **tests, **read("simulation"), **read("bench")}),
        *wrong_phrases(),
    ]
    print("\n".join(complaints))
    return 1 if complaints else 0


def read(folder: str) -> Modules:
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted((ROOT / folder).rglob("*.py"))}


def repeated_classes(modules: Modules) -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    for name, found in places.items():
        if len(found) > 1 and name not in ALLOWED:
            yield f"class {name} stands twice, give one of them another name: {', '.join(found)}"
    yield from (f"{name} stands once: take it out of ALLOWED" for name in ALLOWED if len(places[name]) < 2)


def openings(modules: Modules) -> Iterator[str]:
    for path, tree in modules.items():
        for line, text in docstrings(tree):
            if OPENING.match(text.lstrip()):
                yield f"{path}:{line}: this docstring must open with a noun or a verb: {text.splitlines()[0]}"


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module and all its statements, without the expressions in them, which are most of a tree."""
    left: list[ast.AST] = [tree]
    while left:
        yield (node := left.pop())
        for name in ("body", "orelse", "handlers", "cases", "finalbody"):
            inner = getattr(node, name, ())
            left.extend(inner if isinstance(inner, list) else ())


def stored_attributes(target: ast.expr) -> Iterator[tuple[int, str]]:
    for node in ast.walk(target):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring: of the module, its classes and functions, and after an assignment."""
    for node in statements(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for before, item in zip([None, *body], body, strict=False):
            described = isinstance(node, owners) if before is None else isinstance(before, ast.Assign | ast.AnnAssign)
            match item:
                case ast.Expr(value=ast.Constant(value=str() as text)) if described:
                    yield item.lineno, text


def strange_errors(modules: Modules) -> Iterator[str]:
    """Exceptions that the text at the top of `errors.py` draws in another way, or not at all."""
    drawing, _, outside = (ast.get_docstring(modules[ERRORS]) or "").partition("Outside the tree")
    drawn, above = {"RollyardError": "Exception"}, {0: "RollyardError"}
    for line in drawing.splitlines():
        if found := TREE_LINE.match(line):
            depth = len(found["bars"]) // 4
            above[depth] = found["name"]
            drawn[found["name"]] = above[depth - 1]
    classes = {
        node.name: (f"{path}:{node.lineno}", [ast.unparse(base).rpartition(".")[2] for base in node.bases])
        for path, tree in modules.items()
        for node in statements(tree)
        if isinstance(node, ast.ClassDef)
    }

    def is_exception(name: str) -> bool:
        known = getattr(builtins, name, None)
        bases = classes[name][1] if name in classes else []
        return (isinstance(known, type) and issubclass(known, BaseException)) or any(map(is_exception, bases))

    for name, (place, above_it) in classes.items():
        if not is_exception(name) or name.startswith("_") or re.search(rf"\b{name}\b", outside):
            continue
        if drawn.get(name) not in above_it:
            yield f"{place}: {name}({', '.join(above_it)}) does not stand so in the tree of {ERRORS}, nor below it"
    yield from (f"{ERRORS}: {name} stands in the tree, and no such class exists" for name in drawn.keys() - classes)
    for name in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", outside):
        if name not in classes:
            yield f"{ERRORS}: {name} stands below the tree, and no such class exists"


def stale_words() -> Iterator[str]:
    """Words without a row in the glossary, and folders that do not exist."""
    rows = (ROOT / "docs/glossary.md").read_text()
    for word in WORDS:
        if f"\n| {word.word} |" not in rows:
            yield f"docs/glossary.md: the table has no row for {word.word}"
        for folder in (*word.absent_from, *(one for one in word.allowed if "/" in one)):
            if not (ROOT / folder).is_dir():
                yield f"scripts/glossary_words.py: {word.word}: there is no folder {folder}; write its present name"


def wrong_names(modules: Modules) -> Iterator[str]:
    """Names of modules, classes, functions, constants and attributes in which a word has a wrong meaning."""
    for path, tree in modules.items():
        for line, name in sorted(set(defined_names(path, tree))):
            yield from (f"{path}:{line}: {why}" for why in wrong_name(name, str(path)))


def defined_names(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    yield 1, path.stem
    for node in statements(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.Assign(targets=targets):
                yield from (named for target in targets for named in stored_attributes(target))
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target) | ast.For(target=target):
                yield from stored_attributes(target)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                yield from (
                    named for item in items if item.optional_vars for named in stored_attributes(item.optional_vars)
                )
        if isinstance(node, ast.ClassDef | ast.Module):
            for item in node.body:
                match item:
                    case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                        yield item.lineno, name


def wrong_phrases() -> Iterator[str]:
    folders = ("bench", "deploy", "docs", "examples", "rollyard", "simulation")
    for path in sorted([*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.*"))]):
        if path.suffix in (".md", ".py", ".sh", ".yaml") and path.name not in ("CHANGELOG.md", "glossary.md"):
            where = str(path.relative_to(ROOT))
            for number, line in enumerate(path.read_text().splitlines(), 1):
                yield from (f"{where}:{number}: {why}" for why in wrong_phrase(line, where))


if __name__ == "__main__":
    sys.exit(main())
