#!/bin/bash
set -e
cd /app
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org HOME=/tmp
git config --global --add safe.directory '*'
git branch totals "$(git fsck --no-reflogs --unreachable | sed -n 's/unreachable commit //p' |
  while read -r one; do git log -1 --format='%H %s' "$one"; done | sed -n 's/ Count pears$//p')"
git checkout -q main
git merge -q -m 'Merge totals' totals
