#!/bin/bash
if python3 - <<'END'
import json
report = json.load(open("/app/report.json"))
assert list(report) == ["CH", "DE", "FR"]
assert abs(report["CH"] - 10.5) < 0.001
assert abs(report["DE"] - 997.25) < 0.001
assert abs(report["FR"] - 27.0) < 0.011
END
then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
