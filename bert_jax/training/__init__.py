"""The train step, its losses and optimizer, and evaluation on held-out text."""
