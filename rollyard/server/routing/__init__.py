"""Model servers: their registry, their health, and the choice of a model server for each session."""
