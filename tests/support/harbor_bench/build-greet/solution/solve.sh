#!/bin/bash
set -e
cd /app/greet
cat > Makefile <<'END'
PREFIX ?= /usr/local

build/greet: src/version.py.in VERSION src/__main__.py
	rm -rf build && mkdir -p build/parts
	sed "s/@VERSION@/$$(cat VERSION)/" src/version.py.in > build/parts/version.py
	cp src/__main__.py build/parts
	python3 -m zipapp build/parts -o build/greet -p /usr/bin/python3

install: build/greet
	mkdir -p $(PREFIX)/bin
	cp build/greet $(PREFIX)/bin/greet

.PHONY: install
END
make install PREFIX=/opt/greet
