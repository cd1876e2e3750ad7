"""Step-wise kernels: one launch per time step over all trials, for large layers."""
