"""What the command line is made of: flags, one run, and what is said about it."""
