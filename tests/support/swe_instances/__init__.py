"""Real instances of SWE families, made from the release histories of small packages with permissive licenses."""
