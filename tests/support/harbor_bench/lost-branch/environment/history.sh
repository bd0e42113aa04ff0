set -e
export GIT_AUTHOR_NAME=ada GIT_AUTHOR_EMAIL=ada@example.org GIT_COMMITTER_NAME=ada GIT_COMMITTER_EMAIL=ada@example.org HOME=/tmp
git config --global --add safe.directory '*'
git init -q -b main /app
cd /app
save() { printf '%s\n' "$2" > "$1"; git add "$1"; git commit -qm "$3"; }
save sales.txt '3 apples' 'Add sales'
git checkout -qb totals
save totals.txt 'apples 3' 'Add totals'
GIT_AUTHOR_NAME=grace save totals.txt 'apples 3, pears 0' 'Count pears'
git checkout -q main
save sales.txt '4 apples' 'One apple more'
git branch -qD totals
rm -rf .git/logs  # the reflog would tell it at once
