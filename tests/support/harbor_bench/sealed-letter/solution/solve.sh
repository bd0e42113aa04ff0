#!/bin/bash
python3 - <<'END'
import base64, struct, zlib
blob = base64.b64decode(open("/app/letter.b64").read())
version, length = struct.unpack("<HI", blob[4:10])
check, body = struct.unpack(">I", blob[10:14])[0], blob[14 : 14 + length][::-1]
body = bytes(byte ^ (at & 255) for at, byte in enumerate(body))
key = bytes(byte ^ plain for byte, plain in zip(body, b"The "))
text = bytes(byte ^ key[at % 4] for at, byte in enumerate(body))
assert zlib.crc32(text) == check
open("/app/letter.txt", "wb").write(text)
END
