"""Exact arithmetic of what private training runs: sums, clipping, steps."""
