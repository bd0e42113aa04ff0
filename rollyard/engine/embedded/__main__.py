"""`python -m rollyard.engine.embedded --model DIR --served-name NAME --uds PATH`."""

from __future__ import annotations

import os

# Set before numpy is imported: two engines share two cores, and small products gain nothing from a second thread.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
# Otherwise the first write to a slot makes the kernel clear two megabytes in each layer.
os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")

if __name__ == "__main__":
    from rollyard.engine.embedded.main import main

    raise SystemExit(main())
