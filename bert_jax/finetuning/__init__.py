"""Labelled tasks: examples, features, training, predictions and metrics."""
