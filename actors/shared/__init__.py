"""What the processes of several kinds use."""
