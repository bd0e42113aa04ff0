"""Updates of a pool's weights, decided from the pool's status. Pure."""
