"""Task kind `gym`: tasks of libraries that make and score them by a program."""
