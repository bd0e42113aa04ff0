"""Agent Lightning's rollout controller: it takes what is queued in its store, and posts turns and rewards back."""
