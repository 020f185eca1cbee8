"""The resources of the cluster: the decisions of a ResourceManager."""
