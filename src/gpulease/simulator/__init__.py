"""Simulated GPUs: state files, and the library that answers NVML calls from them."""
