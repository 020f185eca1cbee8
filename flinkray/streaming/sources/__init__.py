"""Sources: the interface, and the ones that come with the package."""
