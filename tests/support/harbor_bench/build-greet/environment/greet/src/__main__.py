import sys

from version import VERSION

print(f"Hello, {sys.argv[1]}! (greet {VERSION})")
