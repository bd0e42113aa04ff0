"""Parts that all processes use: errors, clock, telemetry, waiting, and HTTP bodies within limits."""
