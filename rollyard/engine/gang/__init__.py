"""The processes of a replica that spans nodes. They find each other, and start and end together."""
