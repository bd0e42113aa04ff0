#!/bin/bash
# Slurm 26.05 of Debian's unstable suite in a tree of its own, with pyslurm built against it: what the drivers are tested on
# besides the Slurm of this machine. As root, on Debian; two minutes and 550 MB the first time, nothing after that.
#
#   usage: sid-tree.sh [TREE]
#
# TREE defaults to ${ROLLYARD_CACHE:-~/.cache/rollyard}/slurm-sid; the last line printed is its path. Then
#
#   TREE/enter COMMAND ...
#
# runs a command in it. That sees this machine's /proc, /dev, /sys, /tmp and names; the mounts belong to the command alone and
# vanish with it. Such a cluster:  deploy/slurm/devcluster up DIR --wrapper TREE/enter   (DIR below /tmp)
#
# The packages come from the mirror that this machine's own apt sources name, checked with its own Debian keyring; pyslurm from
# where this machine's pip takes its packages. Nothing is installed on the machine itself but mmdebstrap.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called as `sh FILE`
set -euo pipefail

SUITE=sid
TREE=${1:-${ROLLYARD_CACHE:-$HOME/.cache/rollyard}/slurm-sid}
PYSLURM=25.11.2
PACKAGES="slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins slurm-wlm-jwt-plugin slurm-wlm-mysql-plugin slurmrestd
  libslurm-dev munge base-files bash coreutils dash diffutils findutils grep hostname libc-bin mawk procps sed util-linux
  python3-dev python3-venv ca-certificates gcc libc6-dev"

die() { echo "sid-tree.sh: $*" >&2; exit 1; }
say() { echo "sid-tree.sh: $*" >&2; }

TREE=$(realpath -m "$TREE")
if [ -x "$TREE/enter" ]; then echo "$TREE"; exit 0; fi
[ "$(id -u)" = 0 ] || die "entering a tree takes chroot and mounts: run this as root"
for tool in apt-get python3 unshare flock; do command -v "$tool" >/dev/null || die "$tool is missing"; done
python3 -m pip --version >/dev/null 2>&1 || die "this machine's python3 has no pip, by which pyslurm's sources come"
unshare -m true 2>/dev/null || die "this machine allows no mount namespace (unshare -m), and the tree is entered by one"
command -v mmdebstrap >/dev/null || say 'installing mmdebstrap with apt-get (half a minute)'
command -v mmdebstrap >/dev/null || { apt-get -qq update && apt-get -qq install -y --no-install-recommends mmdebstrap >/dev/null; } ||
  die "mmdebstrap is missing and apt-get could not install it"

# The first Debian mirror among the machine's own apt sources: deb822 files, then one-line files.
mirror() {
  shopt -s nullglob
  cat /dev/null /etc/apt/sources.list.d/*.sources | awk '/^URIs:/ { print $2 }'
  cat /dev/null /etc/apt/[s]ources.list /etc/apt/sources.list.d/*.list | sed -nE 's/^deb +(\[[^]]*\] +)?([^ ]+) .*/\2/p'
}
MIRROR=$(mirror | grep -m 1 -E '/debian/?$') || die "the apt sources of this machine name no Debian mirror"
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r "$KEYRING" ] || die "$KEYRING is missing: install the package debian-archive-keyring"

mkdir -p "$(dirname "$TREE")"
exec 9> "$TREE.lock"
flock 9  # two test runs may want it at once
if [ -x "$TREE/enter" ]; then echo "$TREE"; exit 0; fi
NEW=$TREE.new
rm -rf --one-file-system "$NEW" "$TREE"
trap 'rm -rf --one-file-system "$NEW" "$NEW.apt"' EXIT

say "fetching and unpacking Slurm of $SUITE (a minute, 550 MB)"
# How this machine fetches packages (proxies, time-outs) holds here too. A mirror that lags, and a snapshot always, serves a
# Release file past its one week of Valid-Until: an old sid serves as well here, and signatures are checked all the same.
apt-config dump | grep '^Acquire::' | grep -v '^Acquire::IndexTargets' > "$NEW.apt"
echo 'Acquire::Check-Valid-Until "false";' >> "$NEW.apt"
. "$(dirname "$0")/../progress.sh"
going_on "sid-tree.sh: fetching Slurm" "$NEW" mmdebstrap --quiet --mode=root --variant=extract --keyring="$KEYRING" --aptopt="$NEW.apt" --include="$(echo $PACKAGES | tr ' ' ,)" \
  "$SUITE" "$NEW" "deb [signed-by=$KEYRING] $MIRROR $SUITE main" >&2

# No maintainer script has run: what they would have linked and written.
for program in "$NEW"/usr/sbin/*-wlm "$NEW"/usr/bin/*-wlm; do
  [ -e "$program" ] && ln -sf "$(basename "$program")" "${program%-wlm}"
done
ln -sf bash "$NEW/usr/bin/sh"
ln -sf mawk "$NEW/usr/bin/awk"
printf 'passwd: files\ngroup: files\nhosts: files dns\n' > "$NEW/etc/nsswitch.conf"
cat "$NEW"/usr/share/ca-certificates/mozilla/*.crt > "$NEW/etc/ssl/certs/ca-certificates.crt"  # pip does not start without
touch "$NEW"/etc/{passwd,group,hosts,hostname,resolv.conf}
mkdir -p "$NEW"/{proc,dev,sys,tmp}

cat > "$NEW/enter.new" <<'ENTER'
#!/bin/sh
# Runs a command in this tree, in a mount namespace of its own.
tree=$(dirname "$(readlink -f "$0")")
export tree
exec unshare -m --propagation private /bin/sh -euc '
  for folder in proc dev sys tmp; do mount --rbind "/$folder" "$tree/$folder"; done
  for file in passwd group hosts hostname resolv.conf; do
    [ ! -e "/etc/$file" ] || mount --bind "/etc/$file" "$tree/etc/$file"
  done
  # A chroot leaves the working folder, which a command takes to be the job'"'"'s.
  here=$PWD root=$tree
  unset tree
  exec chroot "$root" /bin/sh -c '"'"'cd "$1" 2>/dev/null; shift; exec "$@"'"'"' sh "$here" "$@"
' sh "$@"
ENTER
chmod 755 "$NEW/enter.new"
"$NEW/enter.new" /sbin/ldconfig

say "building pyslurm $PYSLURM (two minutes)"
SOURCES=$NEW/usr/src/pyslurm
mkdir -p "$SOURCES"
pip() { python3 -m pip --disable-pip-version-check "$@"; }
pip download --quiet --quiet --no-deps --no-binary pyslurm --dest "$SOURCES" "pyslurm==$PYSLURM" >&2
# Pure Python, so that the tree's own interpreter takes them whatever this machine's is.
pip download --quiet --quiet --no-deps --only-binary :all: --implementation py --abi none --platform any --dest "$SOURCES" \
  'setuptools<82' wheel packaging 'Cython>=3.1,<3.3' >&2

# It wants the headers of its own Slurm: it gets a copy of these that say so. What 26.05 renamed or dropped since is named here.
cp -r "$NEW/usr/include/slurm" "$SOURCES/"
sed -i -E 's/^(#define SLURM_VERSION_NUMBER) .*/\1 0x190b02/' "$SOURCES/slurm/slurm_version.h"
going_on "sid-tree.sh: building pyslurm" "$NEW" "$NEW/enter.new" /bin/sh -euc '
  export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS=/usr/src/pyslurm
  unset PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_CERT PIP_CACHE_DIR
  export SLURM_INCLUDE_DIR=/usr/src/pyslurm SLURM_LIB_DIR=$(dirname "$(find /usr/lib -name libslurm.so -print -quit)")
  export CFLAGS="-O0 -g0 -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf -DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2031"
  python3 -m venv /opt/pyslurm
  pip="/opt/pyslurm/bin/python -m pip --disable-pip-version-check --quiet --no-cache-dir"
  $pip install setuptools wheel packaging Cython
  $pip install --no-build-isolation --no-deps "pyslurm=='"$PYSLURM"'"
' >&2
"$NEW/enter.new" env PYSLURM_DISABLE_AUTO_INIT=1 /opt/pyslurm/bin/python -Ic 'import pyslurm' || die "pyslurm was built and cannot be imported"

rm -rf "$SOURCES" "$NEW"/var/cache/apt "$NEW"/var/lib/apt/lists "$NEW"/etc/apt
mv "$NEW/enter.new" "$NEW/enter"
mv "$NEW" "$TREE"
say "$("$TREE/enter" slurmctld -V) and pyslurm $PYSLURM"
echo "$TREE"
