"""Engine of a Kubernetes-shaped controller: queue, informer, expectations, manager. No kind is known here."""
