#!/usr/bin/env bash
# Takes the page's libraries from npm again, and checks that they are the committed files. They are as published, but for the
# name by which hooks.js imports preact.js, and without the lines that name source maps.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in preact-11.2.0 htm-3.1.1; do
  (cd "$work" && npm pack --silent "${package%-*}@${package##*-}" > /dev/null && mkdir "${package%-*}" && tar xzf "$package.tgz" -C "${package%-*}")
done
take() { sed -e 's#from"preact"#from"./preact.js"#' -e '/^\/\/# sourceMappingURL=/d' "$work/$1" > "$2"; }
take preact/package/dist/preact.mjs preact.js
take preact/package/hooks/dist/hooks.mjs hooks.js
take htm/package/dist/htm.module.js htm.js
sha256sum --check SHA256SUMS
