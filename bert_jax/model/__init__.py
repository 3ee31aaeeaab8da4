"""The BERT network: layers, task heads and parameter utilities."""
