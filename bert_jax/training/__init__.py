"""The train step, its losses and optimizer, and the evaluation of held-out text."""
