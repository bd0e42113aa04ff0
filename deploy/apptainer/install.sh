#!/bin/bash
# Real Apptainer, non-setuid, in a private folder of its own. Needs no root; nothing else on the machine changes.
#
#   usage: install.sh [PREFIX]
#
# PREFIX defaults to ${ROLLYARD_CACHE:-~/.cache/rollyard}/apptainer, and for root to /var/cache/rollyard/apptainer, because
# sandboxes never run as root and an ordinary user cannot look into root's home. `rollyard` looks in both by itself.
#
# Debian's stable releases have no apptainer package, so the packages come from Debian's unstable suite, on the mirror that
# this machine's own apt sources name and checked with the machine's own Debian keyring. They are unpacked, not installed,
# and run with the C library they were built for.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called as `sh FILE`
set -euo pipefail

SUITE=sid
if [ "$(id -u)" = 0 ]; then cache=/var/cache/rollyard; else cache=${ROLLYARD_CACHE:-$HOME/.cache/rollyard}; fi
PREFIX=${1:-$cache/apptainer}
# Apptainer, unsquashfs and patchelf with what they link to; the rest of Debian's dependencies is for networks and setuid.
PACKAGES="apptainer squashfs-tools patchelf libc6 libseccomp2 libgcc-s1 libstdc++6 zlib1g liblzma5 liblzo2-2 liblz4-1 libzstd1 libxxhash0 libsqlite3-0"

die() { echo "install.sh: $*" >&2; exit 1; }

[ "$("$PREFIX/bin/apptainer" --version 2>/dev/null)" ] && { "$PREFIX/bin/apptainer" --version; exit 0; }
for tool in apt-get dpkg-deb dpkg; do
  command -v "$tool" >/dev/null || die "$tool is missing: this script is for Debian. Elsewhere install the distribution's apptainer; bubblewrap serves without it"
done

# The first Debian mirror among the machine's own apt sources: deb822 files, then one-line files.
mirror() {
  shopt -s nullglob
  cat /dev/null /etc/apt/sources.list.d/*.sources | awk '/^URIs:/ { print $2 }'
  cat /dev/null /etc/apt/[s]ources.list /etc/apt/sources.list.d/*.list | sed -nE 's/^deb +(\[[^]]*\] +)?([^ ]+) .*/\2/p'
}
MIRROR=$(mirror | grep -m 1 -E '/debian/?$') || die "the apt sources of this machine name no Debian mirror: install the distribution's apptainer; bubblewrap serves without it"
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r "$KEYRING" ] || die "$KEYRING is missing: install the package debian-archive-keyring"

echo "install.sh: fetching and unpacking Apptainer of Debian's $SUITE (a minute)" >&2
mkdir -p "$(dirname "$PREFIX")"
WORK=$(mktemp -d "$PREFIX.XXXXXX")
trap 'rm -rf "$WORK"' EXIT

# A private apt state that knows only $SUITE.
mkdir -p "$WORK"/{lists/partial,cache/archives/partial,sources,debs,root}
printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: %s\nSigned-By: %s\n' \
  "$MIRROR" "$SUITE" "$(dpkg --print-architecture)" "$KEYRING" > "$WORK/sources/suite.sources"
APT=(-qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$WORK/sources" -o Dir::State::Lists="$WORK/lists"
  -o Dir::Cache="$WORK/cache" -o Acquire::Languages=none -o APT::Sandbox::User=root -o Acquire::Retries=3 -o Acquire::http::Timeout=30)
apt-get "${APT[@]}" update
. "$(dirname "$0")/../progress.sh"
download() { (cd "$WORK/debs" && apt-get "${APT[@]}" download $PACKAGES); }
going_on 'install.sh: fetching Apptainer' "$WORK" download
for deb in "$WORK"/debs/*.deb; do dpkg-deb -x "$deb" "$WORK/root"; done

# Apptainer finds its prefix from its own path, but its starter strips one directory fewer than its command line does:
# the two links in usr/lib make both find etc and var.
NEW=$WORK/new
mkdir -p "$NEW"/{usr/bin,usr/var/lib/apptainer/mnt/session,lib,bin}
cp -a "$WORK/root/usr/bin/"{apptainer,mksquashfs,unsquashfs} "$NEW/usr/bin/"
libexec=$(dirname "$(find "$WORK/root/usr/lib" -path '*/apptainer/bin' -type d -print -quit)")
libdir=${libexec%/apptainer}
mkdir -p "$NEW/${libdir#"$WORK/root/"}"
cp -a "$libexec" "$NEW/${libdir#"$WORK/root/"}/"
cp -a "$WORK/root/etc" "$NEW/usr/"
ln -s ../var "$NEW/usr/lib/var"
ln -s ../etc "$NEW/usr/lib/etc"
find "$WORK/root" \( -name '*.so' -o -name '*.so.*' \) -path "*-linux-gnu*" -not -path '*/gconv/*' -not -path '*/apptainer/*' \
  -exec cp -aL -t "$NEW/lib" {} + 2>/dev/null || true
loader=$(basename "$(find "$WORK/root" -name 'ld-linux*.so.*' -print -quit)")
[ -n "$loader" ] && cp -L "$(find "$WORK/root" -name "$loader" -print -quit)" "$NEW/lib/"

# Each program starts with the C library of its own suite. patchelf itself is started through that loader.
patch() { "$NEW/lib/$loader" --library-path "$NEW/lib" "$WORK/root/usr/bin/patchelf" \
  --set-interpreter "$PREFIX/lib/$loader" --force-rpath --set-rpath "$PREFIX/lib" "$1"; }
for program in "$NEW"/usr/bin/* "$NEW/${libdir#"$WORK/root/"}"/apptainer/bin/starter; do patch "$program"; done
# Helpers such as mksquashfs are looked for next to apptainer first.
sed -i "s|^#* *binary path = .*|binary path = $PREFIX/usr/bin:\$PATH:|" "$NEW/usr/etc/apptainer/apptainer.conf"
ln -s ../usr/bin/apptainer "$NEW/bin/apptainer"

chmod -R a+rX "$NEW"
rm -rf "$PREFIX"
mv "$NEW" "$PREFIX"
"$PREFIX/bin/apptainer" --version
