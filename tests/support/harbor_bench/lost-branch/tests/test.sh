#!/bin/bash
if python3 - <<'END'
import subprocess
def git(*words):
    words = ["git", "-c", "safe.directory=*", "-C", "/app", *words]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
assert git("log", "--format=%an %s", "totals") == ["grace Count pears", "ada Add totals", "ada Add sales"]
assert {"ada One apple more", "grace Count pears"} <= set(git("log", "--format=%an %s", "main"))
assert git("show", "main:totals.txt") == ["apples 3, pears 0"]
assert git("show", "main:sales.txt") == ["4 apples"]
END
then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
