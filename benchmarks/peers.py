"""lazytrace beside its peers: eager, torch.compile, torch.jit.trace and, where it is, jax.jit.

`python benchmarks/peers.py` measures everything (about 25 minutes) and writes `benchmarks/RESULTS.md`;
`S1` .. `S7` choose sections, `--quick` is for trying things out, `--help` tells the rest.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # A child must load no more than what it measures: jax's Python has no torch, for one.
    if sys.argv[1:2] == ["--child"]:
        from peers.child import answer

        answer(*sys.argv[2:])
    else:
        from peers.command import main

        sys.exit(main(sys.argv[1:]))
