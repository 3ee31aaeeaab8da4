"""Checkpoints of a workdir: saving, restoring, verifying, and the workdir itself."""
