"""Devices, meshes, multi-process coordination and preemption."""
