"""Converts examples to rows of token ids."""
