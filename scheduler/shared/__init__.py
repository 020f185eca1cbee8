"""What several domains speak of: states, slots, tasks, failures."""
