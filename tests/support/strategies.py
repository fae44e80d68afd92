"""Hypothesis strategies for devices, as a truthful driver or a stubborn one may report them."""

from __future__ import annotations

from hypothesis import strategies as st

from gpulease.model.values import Device, Process

GIB = 1 << 30
NAMES = ["NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 3090", "NVIDIA RTX A6000", "Tesla T4"]


def maybe(values: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.none() | values


processes = st.builds(
    Process,
    pid=st.integers(2, 4_000_000),
    start_time=maybe(st.integers(0, 10**9)),
    user=st.sampled_from(["root", "nobody", None]),
    command=st.sampled_from(["python train.py", None]),
    memory=maybe(st.integers(0, 40 * GIB)),
    graphics=st.booleans(),
)


@st.composite
def machines(draw: st.DrawFn, most: int = 8) -> tuple[Device, ...]:
    """Between none and `most` devices with distinct indices and UUIDs."""
    return tuple(_device(draw, index) for index in range(draw(st.integers(0, most))))


def _device(draw: st.DrawFn, index: int) -> Device:
    return Device(
        index=index,
        uuid=f"GPU-{draw(st.integers(0, 2**16 - 1)):04x}-{index:04x}",
        name=draw(st.sampled_from(NAMES)),
        memory_total=draw(maybe(st.sampled_from([16 * GIB, 24 * GIB, 80 * GIB]))),
        memory_used=draw(maybe(st.sampled_from([0, 8 << 20, 2 * GIB, 16 * GIB]))),
        utilization=draw(maybe(st.sampled_from([0, 3, 50, 100]))),
        memory_utilization=draw(maybe(st.sampled_from([0, 3, 50, 100]))),
        processes=draw(st.none() | st.lists(processes, max_size=3).map(tuple)),
        lost=draw(st.sampled_from([None, None, None, "lost"])),
    )
