"""Training batches: sentence pairs, packing and masking, for any step."""
