"""Devices, meshes and processes: how a run is spread over them, and how it ends."""
