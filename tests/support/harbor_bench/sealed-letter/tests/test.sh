#!/bin/bash
if python3 - <<'END'
import hashlib
text = open("/app/letter.txt", "rb").read().strip()
assert hashlib.sha256(text).hexdigest() == "99d0703af428ceef76b5b8f17a60088bd2b8e3c4d23a105cc8537fc274f46e1b"
END
then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
