"""The weights that an engine serves, their change at run time, and their verification."""
