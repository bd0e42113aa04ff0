"""The process inside a sandbox. It serves bash, IPython, an editor and files to the owner of the sandbox.

It needs only the standard library, ptyprocess and IPython, because it is copied into images without any other package
of ours.
"""
