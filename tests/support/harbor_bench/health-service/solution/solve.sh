#!/bin/bash
cat > /app/service.ini <<'END'
[server]
port = 8093
address = 127.0.0.1
[files]
root = /app/public
[headers]
X-Site = harbor
END
