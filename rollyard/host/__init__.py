"""The machine below: this node's cache folder, the account of sandboxes, Apptainer's programs, deletion of deep folders, the
user of a connection within the machine."""
