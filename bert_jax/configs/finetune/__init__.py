"""Config files of fine-tuning: `--config=NAME` or a path to your own file."""
