"""The processes of a replica that spans nodes. The processes find each other, and start and end together."""
