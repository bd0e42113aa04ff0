"""Parts of every process: errors, clock, telemetry, waiting, and HTTP bodies within limits. No kind is known here."""
