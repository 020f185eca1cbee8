"""The operators: one module for each kind."""
