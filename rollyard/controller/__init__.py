"""The engine of a Kubernetes-shaped controller: queue, informer, expectations, manager. It knows no kind."""
