"""A training loop that is slower than it need be, for five reasons, and the report that leads to each of
them.

Three things make traced functions record again and again, two make them run eagerly. Each is marked below
with "planted"; try to find them from the report alone, before reading the code:

    python -m lazytrace run --report report.html examples/retraces.py
"""

import numpy as np
import torch
from torch import Tensor, nn

from lazytrace import report, traced

STEPS = 12
history: list[float] = []


class Gate(nn.Module):
    """A linear layer behind a gate whose strength is annealed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.strength = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 8) -> (batch, 8)."""
        return torch.sigmoid(self.linear(x) * self.strength) * x


# By default the second length would be recorded for all lengths, and the others would be hits; so it is with
# numbers. dynamic=False asks for a program of each, so what differs at each call is recorded at each call.
@traced(dynamic=False)
def normalize(tokens: Tensor) -> Tensor:
    """Center a sequence of any length, `[length]`."""
    return tokens - tokens.mean()


@traced(dynamic=False)
def soften(logits: Tensor, temperature: float) -> Tensor:
    """Probabilities of logits."""
    return torch.softmax(logits / temperature, -1)


@traced
def log_loss(probabilities: Tensor) -> Tensor:
    """The mean negative logarithm, kept for a plot."""
    loss = -probabilities.log().mean()
    history.insert(0, loss.item())  # planted: changing a list
    return loss


@traced
def largest(probabilities: Tensor) -> Tensor:
    """The share of rows whose largest entry is above one half."""
    rows = np.apply_along_axis(max, 1, probabilities.detach().numpy())  # planted: values leave torch
    return torch.tensor((rows > 0.5).mean())


def main() -> None:
    """Twelve steps of nothing in particular."""
    torch.manual_seed(0)
    gate = Gate()
    gated = traced(gate, name="gate", dynamic=False)
    for step in range(STEPS):
        gate.strength *= 0.9
        x = gated(torch.randn(4, 8))  # planted: an attribute that is read has changed
        normalize(torch.randn(3 + step))  # planted: each length is another shape
        probabilities = soften(x, 1.0 - step / 20)  # planted: a number that differs at each call
        log_loss(probabilities)
        largest(probabilities)
    print(report(), end="")


if __name__ == "__main__":
    main()
