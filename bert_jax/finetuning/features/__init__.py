"""Turns examples into rows of token ids."""
