"""A program that has initialised CUDA is told, once, that a lease comes too late for it; no other is."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here

from gpulease.simulator.library import CUDA_NAME, library_path

BEGIN = "import ctypes, gpulease, os, sys, types\nfrom gpulease.errors import CudaAlreadyInitialised\n"
CUDA = """
cuda = ctypes.CDLL("libcuda.so.1")
def use():
    assert cuda.cuInit(0) == 0
"""
TORCH = """
import types
def use():
    sys.modules["torch.cuda"] = types.SimpleNamespace(is_initialized=lambda: True)
"""
WARNING = "CudaAlreadyInitialised: CUDA was initialised in this process before"


def told(site: Site, code: str) -> str:
    """What it writes on stderr."""
    environ = {**site.environ, "LD_LIBRARY_PATH": str(library_path().parent)}
    words = [sys.executable, "-c", BEGIN + code]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_library_is_there_under_the_name_that_is_asked_for() -> None:
    assert (library_path().parent / CUDA_NAME).exists()


@pytest.mark.parametrize("module", [CUDA, TORCH], ids=["libcuda", "torch"])
def test_it_is_told_once(site: Site, module: str) -> None:
    err = told(site, f"{module}use()\nfor _ in range(3): gpulease.acquire().release()")
    assert err.count(WARNING) == 1
    assert "before gpulease.acquire()" in err
    assert "or in a new process" in err
    assert "<string>:" in err.partition(WARNING)[0], "the warning stands at the caller's line"


def test_select_tells_it_too_unless_it_sets_nothing(site: Site) -> None:
    assert "before gpulease.select()" in told(site, f"{CUDA}use()\ngpulease.select()")
    assert told(site, f"{CUDA}use()\ngpulease.select(set_environment=False)") == ""


@pytest.mark.parametrize(
    "code",
    [
        "gpulease.acquire()",
        f"{CUDA}gpulease.acquire(); use()",
        f"{CUDA}gpulease.acquire(placeholder=lambda number: use())",
        f"{CUDA}\nwith gpulease.acquire(devices=1): use()\nwith gpulease.acquire(devices=1): pass",
        f"{CUDA}use()\nimport warnings\nwarnings.simplefilter('ignore', CudaAlreadyInitialised)\ngpulease.acquire()",
    ],
    ids=["no CUDA", "used later", "placeholder", "the same GPU again", "ignored"],
)
def test_nobody_else_is_told(site: Site, code: str) -> None:
    assert told(site, code) == ""


def test_another_gpu_than_the_one_before_is_told(site: Site) -> None:
    code = f"{CUDA}\nwith gpulease.acquire(devices=1): use()\nwith gpulease.acquire(devices=2): pass"
    assert WARNING in told(site, code)
