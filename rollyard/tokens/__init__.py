"""The one home of token exactness: ids a model sampled reach the trainer as they were; text is never tokenised back."""
