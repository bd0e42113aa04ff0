#!/bin/bash
if python3 - <<'END'
import pathlib, subprocess
def greet(folder, name):
    return subprocess.run([f"{folder}/bin/greet", name], check=True, capture_output=True, text=True).stdout
assert greet("/opt/greet", "Ada") == "Hello, Ada! (greet 2.1)\n"
pathlib.Path("/app/greet/VERSION").write_text("3.0\n")
subprocess.run(["make", "-C", "/app/greet", "install", "PREFIX=/tmp/other"], check=True)
assert greet("/tmp/other", "Bo") == "Hello, Bo! (greet 3.0)\n"
END
then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
