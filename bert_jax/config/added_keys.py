"""Completes the configs of runs that began before a key was added to the schema."""

from typing import Any

# Key -> the value with which a run continues as it began. A config.json without the key
# is completed with it; a config file has to set every key.
ADDED: dict[str, Any] = {"eval.probes": ()}


def complete(values: dict[str, Any]) -> None:
    """Adds the keys in ADDED that the values of a config.json lack."""
    for key, value in ADDED.items():
        *sections, name = key.split(".")
        section: Any = values
        for part in sections:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict):  # otherwise, building the config raises
            section.setdefault(name, value)
