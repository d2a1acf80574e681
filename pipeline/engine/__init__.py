"""Models in memory and the engines that score buckets of token ids with them; the only place that knows torch."""
