"""The repository's history before the agent starts: what led to HEAD, on one branch, and nothing else.

The scrub makes a new repository with the objects that HEAD and the index need, and takes over only what is named here. So
tags, remotes, reflogs, stashes, notes, replaced objects, worktrees, alternates and all other commits are gone, however they
were kept. Packing reuses what is packed: 65,000 objects take one second.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rollyard.core.errors import TaskError
from rollyard.sandbox.sandbox import Sandbox

SCRUB_SECONDS = 600.0
_SCRIPT = r"""
set -eu
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES
cd "$1"; shift
here=$(pwd -P)
find . -mindepth 2 -name .git -prune -exec rm -rf {} +
if [ $# -gt 0 ]; then rm -rf -- "$@"; fi
if [ ! -e .git ]; then rm -rf .git; echo nothing; exit; fi
if ! command -v git >/dev/null || ! head=$(git rev-parse -q --verify 'HEAD^{commit}'); then rm -rf .git; echo nothing; exit; fi
old=$(git rev-parse --absolute-git-dir)
common=$(cd "$(git rev-parse --git-common-dir)" && pwd -P)
for path in "$common"/worktrees/*; do if [ "$path" != "$old" ]; then rm -rf "$path"; fi; done  # their indexes would be kept
new=$here/.git-of-head
branch=$(git symbolic-ref -q HEAD || echo refs/heads/main)
missing=
if git config --get-regexp '^(extensions\.partialclone|remote\..*\.promisor)$' >/dev/null; then missing=--missing=allow-any; fi
tracked=
for path in "$@"; do
  case $path in /*) continue;; esac
  if [ -n "$(git ls-files -- "$path")" ]; then tracked=yes; git rm -rfq --cached -- "$path"; fi
done
if [ -n "$tracked" ]; then
  head=$(GIT_COMMITTER_NAME=base GIT_COMMITTER_EMAIL=base GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base \
    git commit-tree -m base "$(git write-tree)")
fi
git ls-files -oz -- '*.bundle' | while IFS= read -r -d '' file; do
  if head -c 16 -- "$file" 2>/dev/null | grep -q 'git bundle'; then rm -f -- "$file"; fi
done
rm -rf "$new"
mkdir -p "$new/objects/pack" "$new/objects/info" "$new/info" "$new/${branch%/*}"
echo "$head" | git pack-objects -q --revs --indexed-objects $missing "$new/objects/pack/pack" >/dev/null
echo "$head" >"$new/$branch"
echo "ref: $branch" >"$new/HEAD"
for key in core.repositoryformatversion core.filemode core.bare core.symlinks core.ignorecase core.autocrlf core.eol \
  core.precomposeunicode core.sparsecheckout core.sparsecheckoutcone extensions.objectformat user.name user.email; do
  if value=$(git config --file "$common/config" --get "$key"); then git config --file "$new/config" "$key" "$value"; fi
done
for name in info/exclude info/attributes; do if [ -f "$common/$name" ]; then cp "$common/$name" "$new/$name"; fi; done
for name in index info/sparse-checkout; do if [ -f "$old/$name" ]; then cp -p "$old/$name" "$new/$name"; fi; done
for path in "$old"/sharedindex.*; do if [ -f "$path" ]; then cp -p "$path" "$new/"; fi; done
alternates=$common/objects/info/alternates
if [ -f "$alternates" ]; then
  while IFS= read -r path; do (cd "$common/objects" && rm -rf "$path"); done <"$alternates"
fi
if [ -f "$common/shallow" ]; then
  while read -r id; do if git --git-dir="$new" cat-file -e "$id" 2>/dev/null; then echo "$id"; fi; done \
    <"$common/shallow" >"$new/shallow"
fi
rm -rf .git "$old" "$common"
mv "$new" .git
echo refs=$(git for-each-ref | wc -l) loose=$(find .git/objects -type f ! -path '*/pack/*' | wc -l) \
  there=$(git cat-file --batch-all-objects --batch-check | wc -l) \
  needed=$(git rev-list --objects --all --indexed-objects $missing | wc -l)
"""


async def scrub(sandbox: Sandbox, repository: str, hidden: Sequence[str]) -> None:
    """Scrub the history, and delete the hidden files. Raises TaskError if something of them is left. `hidden`: paths; those in
    the repository begin there. If one of these is in HEAD, the history before HEAD goes too."""
    # in a part of the tools' own bash, because an image may have no bash
    done = await sandbox.bash(f"(\nset -- {shlex.join([repository, *hidden])}\n{_SCRIPT})", SCRUB_SECONDS)
    words = done.output.split()
    if done.exit_code != 0 or not words:
        raise TaskError(f"the history of {repository} cannot be scrubbed: {done.output.strip()[-500:]}")
    if words[-1] != "nothing":
        found = dict(word.split("=") for word in words[-4:])
        if found["refs"] != "1" or found["loose"] != "0" or found["there"] != found["needed"]:
            raise TaskError(
                f"the history of {repository} has more than HEAD after the scrub: {done.output.strip()[-500:]}"
            )
    if hidden:
        look = f'for path in {shlex.join(hidden)}; do [ ! -e "$path" ] || echo "$path"; done'
        left = await sandbox.bash(f"(cd {shlex.quote(repository)} && {look})", 60.0)
        if left.output.strip():
            raise TaskError(f"files that the task hides cannot be deleted: {left.output.strip()[:500]}")
