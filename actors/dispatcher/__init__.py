"""The process that takes jobs: the Dispatcher."""
