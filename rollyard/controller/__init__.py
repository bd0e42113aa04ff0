"""Parts of a Kubernetes-style controller for any kind of object: queue, informer, expectations, manager."""
