"""Estimates memory, step time and cost of a run by ahead-of-time compilation."""
