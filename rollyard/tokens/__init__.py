"""Token exactness lives here: sampled ids reach the trainer unchanged; text is never tokenised back."""
