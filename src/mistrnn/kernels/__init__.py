"""The fused backends: declarations of cells, torch operators, and kernels for CPUs and NVIDIA GPUs."""
