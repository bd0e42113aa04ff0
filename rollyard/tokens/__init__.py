"""Token exactness: sampled ids reach the trainer unchanged, and sampled text is never tokenised again."""
