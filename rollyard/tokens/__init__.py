"""Conversations as exact token ids. Sampled ids reach the trainer unchanged; sampled text is never tokenised again."""
