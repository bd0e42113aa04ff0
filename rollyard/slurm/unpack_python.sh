#!/bin/bash
# Unpacks Rollyard's Python packages on this node. If several jobs start together on the node, only the first one unpacks.
#
#   usage: unpack_python.sh ARCHIVE SCRATCH
#
# Prints the folder from which the job imports. If the packages cannot be unpacked, prints the reason and fails; the job
# then imports from the folder in which the packages are installed.
set -euo pipefail
umask 077

archive=$1
base=$2/rollyard-$(id -u)-python
folder=$base/$(basename "$archive" .tar)
seconds=300

die() { echo "warning: our Python is not unpacked on this node: $*" >&2; exit 1; }

mkdir -p "$base" || die "$base cannot be made"
# SCRATCH may be writable for all users, so another user may have created this folder or a link with its name.
[ -O "$base" ] && [ ! -L "$base" ] || die "$base is not ours"
exec 9> "$folder.lock"
flock -w "$seconds" 9 || die "another job has held $folder.lock for $seconds s"
# Number of files from the archive. `__pycache__` is not counted, because Python writes it while jobs run.
count() { find "$folder" -name __pycache__ -prune -o -type f ! -name .whole -print | wc -l; }
# `.whole` has the number of files after unpacking. The numbers differ if a job was killed while it unpacked, or if the
# site's clean-up of old files has removed some files.
if [ "$(cat "$folder/.whole" 2>/dev/null)" != "$(count 2>/dev/null)" ]; then
  rm -rf "$folder"
  mkdir "$folder"
  tar -xf "$archive" -C "$folder" || { rm -rf "$folder"; die "$archive cannot be unpacked"; }
  # On a shared folder that lags, a part of a new archive may look like a whole one, also to tar.
  [ -e "$folder/.last" ] || { rm -rf "$folder"; die "$archive is not complete here yet"; }
  count > "$folder/.whole"
fi
# The access times are renewed, because such a clean-up removes files that were not used for some days.
find "$folder" -type f -exec touch -ac {} +
touch "$folder/.whole"
# Remove the folders of releases with which no job has started for 30 days. Jobs are expected to be shorter.
find "$base" -mindepth 2 -maxdepth 2 -name .whole -mtime +30 -printf '%h\0' | xargs -0r rm -rf
echo "$folder"
