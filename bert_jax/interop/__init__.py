"""Weights and vocabularies in the formats other people load."""
