#!/usr/bin/env bash
# Takes the one library of the page from npm again, and checks that it is the committed file.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent htm@3.1.1 > /dev/null && tar xzf htm-3.1.1.tgz)
cp "$work/package/preact/standalone.module.js" preact-htm.js
sha256sum --check SHA256SUMS
