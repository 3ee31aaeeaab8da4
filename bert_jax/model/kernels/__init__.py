"""Pallas kernels; the layers import one where a device, dtype and shape use it."""
