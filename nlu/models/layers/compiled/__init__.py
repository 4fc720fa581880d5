"""Kernels in C, which this machine's own compiler builds when they are first used. All are optional."""
