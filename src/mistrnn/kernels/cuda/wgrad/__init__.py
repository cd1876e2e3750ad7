"""Weight-gradient kernels, launched once after the backward recurrence."""
