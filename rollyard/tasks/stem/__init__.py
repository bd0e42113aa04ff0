"""Task kind `stem`: questions of science and engineering."""
