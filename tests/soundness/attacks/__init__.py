"""Attacks made by rule: every kind of state, every way to it, everything done with it, every change of it.

A case is a program in text. It has one source of state (`sources`), which the function reaches in one way
(`reaching`) and does one thing with (`consumers`); between calls the state changes in one way (`changes`).
Plain and traced must agree on all that can be seen. `python -m tests.soundness.attacks --count 100000` runs
many and tells which combinations were wrong. `--kind training` makes whole training steps instead (`training`, of
the tables in `steps` and `callers`), `--kind entries` programs that draw from pools (`drawing`, of the tables in `entries`),
`--kind orders` the cases of the test files in other orders (`orders`).
"""
