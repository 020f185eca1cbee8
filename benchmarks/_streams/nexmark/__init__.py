"""The Nexmark benchmark: its events, and its queries as stream programs and as SQL."""
