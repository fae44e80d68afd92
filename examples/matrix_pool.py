"""(A @ M) @ B for many pairs of matrices, with M shared by all workers: sge-template's example, on a pool.

python examples/matrix_pool.py [--gpus 2] [--items 20] [--size 200]
gpulease simulate -n 2 -- python examples/matrix_pool.py      without a GPU
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy

import gpulease


def load_matrix() -> Any:
    """Once in each worker: the shared matrix, on the device if PyTorch and a GPU are there."""
    matrix = gpulease.worker().shared["matrix"]
    try:
        import torch
    except ImportError:
        return matrix
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.from_numpy(matrix.copy()).to(device)


def expensive_task(left: Any, right: Any) -> Any:
    """(A @ M) @ B, where M has been on the device since `load_matrix`."""
    matrix = gpulease.worker().state
    if isinstance(matrix, numpy.ndarray):
        return (left @ matrix) @ right
    import torch

    on_device = [torch.from_numpy(each).to(matrix.device) for each in (left, right)]
    return ((on_device[0] @ matrix) @ on_device[1]).cpu().numpy()


def make_items(count: int, size: int) -> Iterator[tuple[Any, Any]]:
    random = numpy.random.default_rng(6)
    for _ in range(count):
        yield random.random((size, size)), random.random((size, size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--results", help="a folder: a second run does only what is missing")
    options = parser.parse_args()

    matrix = numpy.random.default_rng(1).random((options.size, options.size))
    items = list(make_items(options.items, options.size))
    with gpulease.Pool(gpus=options.gpus, init=load_matrix, shared={"matrix": matrix}) as pool:
        results = pool.map(expensive_task, *zip(*items, strict=True), progress=True, results=options.results)
        for (left, right), result in zip(items, results, strict=True):
            assert numpy.allclose(result, (left @ matrix) @ right), "the pool's result differs from the direct one"
    print(f"{options.items} results, all as computed directly")


if __name__ == "__main__":
    main()
