"""Progress display, metrics, throughput and time accounting of a run."""
