"""What people are told of jobs and of the cluster."""
