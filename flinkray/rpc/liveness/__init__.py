"""Finding out whether a peer lives: registration and heartbeats."""
