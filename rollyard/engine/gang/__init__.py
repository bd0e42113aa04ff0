"""A replica that spans nodes: its processes meet, live and die together."""
