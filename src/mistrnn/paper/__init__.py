"""One file per table and figure of the paper: the published values, the exact studies, and the expected result."""
