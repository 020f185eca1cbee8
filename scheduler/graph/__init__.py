"""The job graph: what a user submits, and what follows from it alone."""
