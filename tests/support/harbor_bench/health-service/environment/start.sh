#!/bin/sh
exec python3 /app/service.py /app/service.ini
