"""The CUDA backend: kernels compiled by NVRTC at first use."""
