"""Persistent kernels: a thread block owns a few sequences for all time steps."""
