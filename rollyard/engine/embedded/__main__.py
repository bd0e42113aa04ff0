"""`python -m rollyard.engine.embedded --model DIR --served-name NAME --uds PATH`."""

from __future__ import annotations

import os

# numpy's BLAS reads these variables when numpy is imported. One thread is best: small matrix products gain nothing from
# a second thread.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
# With huge pages, the first write to a slot of the key-value cache would make the kernel clear 2 MiB in each layer.
os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")

if __name__ == "__main__":
    from rollyard.core import garbage_search

    with garbage_search.imports():
        from rollyard.engine.embedded.main import main

    raise SystemExit(main())
