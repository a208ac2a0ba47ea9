"""The small part that has to be right: exact arithmetic that checks.

Each file states its theorem and proves it, and the code below follows the
proof. It imports numpy, scipy, mpmath and itself.
"""
