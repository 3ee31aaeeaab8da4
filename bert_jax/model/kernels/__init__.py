"""Pallas kernels; the layers import one where a device, dtype and shape use it."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Options:
    """Static options of the kernels for attention."""

    head_dim: int  # a kernel takes those in its HEAD_DIMS
    rate: float  # dropout rate of the probabilities
    interpret: bool = False  # emulate the kernels on a CPU

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def unit(self) -> float:
        """Factor of unscaled scores in exponents of 2."""
        return self.scale * math.log2(math.e)
