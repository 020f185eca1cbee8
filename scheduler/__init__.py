"""Makes the decisions of the control plane as pure code, with a folder for each domain."""
