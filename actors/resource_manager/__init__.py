"""The process that gives slots to jobs: the ResourceManager."""
