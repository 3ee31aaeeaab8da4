"""Labelled tasks: examples -> features -> head and loss -> predictions -> metrics.

Only examples.py reads what people have; everything after it is arrays and JAX.
"""
