"""Updates of a pool's weights, computed from the pool's status. Pure."""
