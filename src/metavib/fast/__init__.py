"""The same numbers in less time or memory."""
