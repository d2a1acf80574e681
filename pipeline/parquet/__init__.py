"""One Parquet file in, one out: bounded memory, nothing changed but what is added, all or nothing."""
