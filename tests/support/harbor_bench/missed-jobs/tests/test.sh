#!/bin/bash
if python3 - <<'END'
assert open("/app/missed.txt").read().split("\n") == [
    "06:00 backup", "09:30 mail", "12:45 report", "18:00 backup", "23:05 rotate", ""
]
END
then echo 1; else echo 0; fi > /logs/verifier/reward.txt
