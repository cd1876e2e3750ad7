"""The CPU backend: one compiled library, loaded with ctypes."""
