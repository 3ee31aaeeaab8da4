"""Batches: pairs, packing and masks drawn from a corpus for any step."""
