"""The decisions of the control plane as pure code, a folder for each domain."""
