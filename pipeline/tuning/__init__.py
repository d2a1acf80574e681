"""Making a task better from a few labelled rows: the best prompt of some, and a head fitted on hidden states."""
