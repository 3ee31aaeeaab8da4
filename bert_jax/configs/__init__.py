"""Config files of pretraining: `--config=NAME` or a path to your own file."""
