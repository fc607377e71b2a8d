"""The resident runtime: PID 1 of a sandbox, standard library of python 3.9 only. `protocol` is shared with the client."""
