"""Opens runs, exported and fine-tuned models, and published checkpoints."""
