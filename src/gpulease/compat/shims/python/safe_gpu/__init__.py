"""safe-gpu's package on leases of gpulease: `from safe_gpu import safe_gpu`."""

from safe_gpu.safe_gpu import (
    PyCudaPlaceholder,
    PytorchPlaceholder,
    TensorflowPlaceholder,
    claim_gpus,
    release_gpus,
)

__all__ = ["PyCudaPlaceholder", "PytorchPlaceholder", "TensorflowPlaceholder", "claim_gpus", "release_gpus"]
