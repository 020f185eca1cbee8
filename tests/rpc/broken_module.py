"""A module that cannot be imported."""

number = 1 / 0
