#!/bin/bash
# Slurm for a throwaway cluster on this machine: Debian's or Ubuntu's own packages, installed as root.
#
#   usage: install.sh [--accounting]
#
# --accounting adds slurmdbd and MariaDB, for accounts, QOS, limits and preemption. What is here already stays as it is, and
# no service of the machine is started: deploy/slurm/devcluster runs daemons of its own.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called as `sh FILE`
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

commands="slurmctld slurmd sbatch slurmrestd munged"
plugins="auth_jwt.so"
packages="slurm-wlm slurmctld slurmd slurm-client slurm-wlm-basic-plugins slurm-wlm-jwt-plugin slurmrestd munge"
if [ "${1:-}" = --accounting ]; then
  commands="$commands slurmdbd sacctmgr mariadbd mariadb-install-db"
  plugins="$plugins accounting_storage_mysql.so"
  packages="$packages slurmdbd slurm-wlm-mysql-plugin mariadb-server"
elif [ $# != 0 ]; then
  echo "usage: install.sh [--accounting]" >&2
  exit 2
fi

missing() {
  for name in $commands; do command -v "$name" >/dev/null || printf ' %s' "$name"; done
  for name in $plugins; do compgen -G "/usr/lib*/*/slurm*/$name" >/dev/null || printf ' %s' "$name"; done
}
die() { echo "install.sh: $*" >&2; exit 1; }

lacking=$(missing)
if [ -z "$lacking" ]; then
  slurmctld -V
  exit 0
fi
command -v apt-get >/dev/null || die "missing:$lacking; this machine has no apt-get: install your distribution's Slurm"
[ "$(id -u)" = 0 ] || die "missing:$lacking; as root: apt-get install $packages"

# Packages start their services unless this file says no. One that is there already is left to say what it says.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' > "$policy"
  chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
echo 'install.sh: installing Slurm with apt-get (a minute or two)' >&2
apt-get -qq update || die "missing:$lacking; apt-get update failed"
# A release may have no package of its own for a plugin that another of them holds.
known=$(apt-cache pkgnames | grep -xF "$(printf '%s\n' $packages)")
. "$(dirname "$0")/../progress.sh"
going_on 'install.sh: installing Slurm' /var/cache/apt/archives apt-get -qq install -y --no-install-recommends $known >/dev/null || die "missing:$lacking; apt-get install $known failed"

lacking=$(missing)
[ -z "$lacking" ] || die "still missing:$lacking"
slurmctld -V
