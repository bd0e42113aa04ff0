"""Builds images from Dockerfiles, without root."""
