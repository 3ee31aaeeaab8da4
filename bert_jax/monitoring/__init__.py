"""Progress, metrics, throughput and where the time of a run went."""
