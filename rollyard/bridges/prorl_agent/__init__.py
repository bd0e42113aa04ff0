"""HTTP interface of ProRL Agent's first version (arXiv 2603.18815): `POST /process` runs one instance as a rollout."""
