"""What runs inside a sandbox: one process that serves bash, IPython, an editor and files to the owner of the sandbox.

Needs the standard library, ptyprocess and IPython only, because it travels into images that have nothing of ours.
"""
