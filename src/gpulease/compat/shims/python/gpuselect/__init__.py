"""gpuselect's package on gpulease: `from gpuselect import gpuselect`."""

from gpuselect.nvmlgpuselect import GpuInfo, __filter_gpus, gpuselect, gpustatus

__all__ = ["GpuInfo", "__filter_gpus", "gpuselect", "gpustatus"]
