"""Simulated GPUs: state files, the library that answers NVML calls from them, and its stand-in."""
