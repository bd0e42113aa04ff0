"""The shapes of everything that crosses a boundary: kinds, rollouts, wire messages. No I/O."""
