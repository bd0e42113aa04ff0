"""What every process uses: errors, clock, telemetry, waiting, and HTTP bodies within limits. It knows no kind."""
