"""What every fused form shares: finding the compiled code, calling it, and registering it with torch."""
