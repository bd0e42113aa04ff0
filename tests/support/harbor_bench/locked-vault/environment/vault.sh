set -e
mkdir -p "/app/vault/a/-x" "/app/vault/b b/c"
cd /app/vault
echo one > a/key
echo two > a/-x/key
echo three > "b b/c/key"
printf '#!/bin/sh\necho run\n' > "b b/-run me"
printf '#not a program\n' > "b b/notes"
chmod 666 a/key "b b/notes"
chmod 000 "b b/c/key" a/-x/key
chmod 644 "b b/-run me"
chmod 300 a/-x
chmod 600 "b b/c"
chmod 511 a
