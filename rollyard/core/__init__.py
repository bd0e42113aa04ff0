"""Parts that every process uses: errors, clock, telemetry, waiting, and HTTP bodies within limits. No kind is known
here.
"""
