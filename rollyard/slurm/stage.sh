#!/bin/bash
# Unpacks our Python packages on this node, once, however many jobs of ours start here together.
#
#   usage: stage.sh ARCHIVE SCRATCH
#
# Prints the folder to import from. Fails, saying why, where that cannot be; the job then imports where it always could.
set -euo pipefail
umask 077

archive=$1
base=$2/rollyard-$(id -u)-python
folder=$base/$(basename "$archive" .tar)
seconds=300

die() { echo "warning: our Python is not staged on this node: $*" >&2; exit 1; }

mkdir -p "$base" || die "$base cannot be made"
# In a folder that everyone may write to, somebody else may have been first.
[ -O "$base" ] && [ ! -L "$base" ] || die "$base is not ours"
exec 9> "$folder.lock"
flock -w "$seconds" 9 || die "another job has been at it for $seconds s"
# What Python compiles there while jobs run is not from the archive.
count() { find "$folder" -name __pycache__ -prune -o -type f ! -name .whole -print | wc -l; }
# Not whole: a job was killed in the middle of this, or the site's cleaner of old files has been here.
if [ "$(cat "$folder/.whole" 2>/dev/null)" != "$(count 2>/dev/null)" ]; then
  rm -rf "$folder"
  mkdir "$folder"
  tar -xf "$archive" -C "$folder" || { rm -rf "$folder"; die "$archive cannot be unpacked"; }
  count > "$folder/.whole"
fi
find "$folder" -type f -exec touch -ac {} +  # what is not used for some days such a cleaner takes away
touch "$folder/.whole"
# Of releases that no job has started with for a month, longer than a job lives.
find "$base" -mindepth 2 -maxdepth 2 -name .whole -mtime +30 -printf '%h\0' | xargs -0r rm -rf
echo "$folder"
