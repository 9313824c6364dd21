"""The benchmark behind `benchmarks/peers.py`.

Each of S1 .. S7 is a module with `run` (in the parent: asks child processes, returns raw numbers), `measure`
(in a child, with one torch thread) and `tables` (raw numbers to markdown). `jax_side` has the children of
jax.jit; it and what it imports do without torch.
"""
