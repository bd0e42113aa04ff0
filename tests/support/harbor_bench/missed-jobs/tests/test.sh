#!/bin/bash
if python3 - <<'END'
assert open("/app/missed.txt").read().split("\n") == [
    "06:00 backup", "09:30 mail", "12:45 report", "18:00 backup", "23:05 rotate", ""
]
END
then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
