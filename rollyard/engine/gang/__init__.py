"""A replica that spans nodes: its processes find each other, and start and end together."""
