"""Models of everything that crosses the API: kinds, rollouts, sessions. No I/O."""
