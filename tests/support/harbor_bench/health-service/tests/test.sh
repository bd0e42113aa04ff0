#!/bin/bash
if python3 - <<'END'
import hashlib, subprocess, time, urllib.error, urllib.request
source = open("/app/service.py", "rb").read()
assert hashlib.sha256(source).hexdigest() == "966a388013238dfd4c2d18348f414f7caa0ff646a4b44a27b0087ffc3141b98f"
service = subprocess.Popen(["sh", "/app/start.sh"])
def get(path):
    with urllib.request.urlopen("http://127.0.0.1:8093" + path, timeout=5) as answer:
        return answer.read().decode(), answer.headers["X-Site"]
try:
    for _ in range(100):
        try:
            get("/health")
            break
        except OSError:
            assert service.poll() is None
            time.sleep(0.1)
    assert get("/health") == ("ok", "harbor")
    assert get("/files/motd") == ("welcome\n", "harbor")
    for path in ("/files/secret.txt", "/files/../secret.txt", "/files/service.py"):
        try:
            get(path)
            raise SystemExit(1)
        except urllib.error.HTTPError as error:
            assert error.code == 404
finally:
    service.kill()
END
then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
