"""The same stage on many machines: units of work, a pool of Ray actors, and what becomes of their parts."""
