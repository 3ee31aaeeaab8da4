"""Reads and writes models of transformers, sentence-transformers and Google's BERT."""
