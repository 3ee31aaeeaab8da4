"""Reads documents from files, TensorFlow Datasets and installed Python packages."""
