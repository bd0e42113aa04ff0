#!/bin/bash
if python3 - <<'END'
import os
modes = {}
for at, folders, names in os.walk("/app/vault"):
    for name in [*folders, *names]:
        path = os.path.join(at, name)
        modes[os.path.relpath(path, "/app/vault")] = oct(os.stat(path).st_mode & 0o7777)[2:]
assert modes == {
    "a": "750", "a/-x": "750", "b b": "750", "b b/c": "750", "a/key": "440", "a/-x/key": "440", "b b/c/key": "440",
    "b b/notes": "440", "b b/-run me": "550",
}, modes
assert open("/app/keys.txt").read().split() == ["two", "one", "three"]
END
then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
