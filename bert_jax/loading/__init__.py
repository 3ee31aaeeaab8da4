"""Opens models: of a run, of a directory, of a published checkpoint."""
