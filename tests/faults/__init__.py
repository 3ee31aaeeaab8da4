"""Fault injection: README.md lists the cases and their tests."""
