"""Plans a run for a text, a machine and hours: `python -m bert_jax.plan`."""
