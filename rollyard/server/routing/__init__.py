"""Model servers: their registry, their health, and the choice of one for each session."""
