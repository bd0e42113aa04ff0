"""Fields of a pool's spec whose change replaces its allocations. A revision has these fields."""

REVISED_FIELDS = {
    "InferencePool": ("allocation", "model", "engine", "restartedAt"),
    "RolloutPool": ("allocation", "sandbox", "stages", "restartedAt"),
}
"""Kind -> fields, as in a manifest."""
