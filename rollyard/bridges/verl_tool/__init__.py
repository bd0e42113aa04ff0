"""VeRL-Tool's tool server, with a sandbox for each trajectory."""
