"""The process inside a sandbox. It serves bash, IPython, an editor and files to the owner of the sandbox.

The code imports only the standard library, ptyprocess and IPython, because a sandbox has no other package of ours.
"""
