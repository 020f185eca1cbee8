"""What users implement, and what it is given."""
