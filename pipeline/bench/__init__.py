"""The benchmark: every way to label the same tickets, in one process."""
