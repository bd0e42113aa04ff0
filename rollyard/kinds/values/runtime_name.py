"""Names of container runtimes, as users choose them."""

from typing import Literal

RuntimeName = Literal["auto", "apptainer", "singularity", "bubblewrap"]
"""auto: the first runtime of Apptainer, Singularity and bubblewrap that works on the node."""
