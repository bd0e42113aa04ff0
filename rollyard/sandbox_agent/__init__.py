"""The process inside a sandbox. It serves bash, IPython, an editor and files to the owner of the sandbox.

The code imports only the standard library and IPython, because a sandbox has no other package of ours.

A sandbox is ready when this process answers. So everything that the process imports before its first call is made of C, or
of modules that Python has loaded anyway: `re`, `enum`, `dataclasses`, `typing`, `json`, `socket` and `threading` would take
five times as long as starting Python. Code for tools that are rarely used is imported at the first call.
"""
