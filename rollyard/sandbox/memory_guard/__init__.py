"""The memory limit of a whole sandbox, where no cgroup can set it: a process beside the node agent measures and ends."""
