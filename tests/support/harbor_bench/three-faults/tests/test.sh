#!/bin/bash
if python3 - <<'END'
import subprocess
def value(path):
    done = subprocess.run(["python3", "-m", "stock", path], cwd="/app", check=True, capture_output=True, text=True)
    return done.stdout
assert value("/app/example.txt") == "17.50\n"
open("/tmp/other", "w").write("a 1 10 25\n\n#b 3 3\na 2 10\nc 3 0.5 100\n")
assert value("/tmp/other") == "30.00\n"
END
then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
