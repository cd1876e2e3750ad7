"""One file per table and figure of the paper: the published values, the exact study, and what to expect."""
