"""Train a small convolutional classifier on handwritten digits, traced, beside an untraced twin.

The 1,797 images of 8 x 8 pixels are those that scikit-learn ships. What is traced is the forward pass
together with the loss; gradients flow through it, `backward()` and the optimizer stay outside. On the way:

- the last batch of each epoch is smaller than the others;
- training (dropout, batch statistics) and evaluation (without gradients) take turns;
- at the end both models are evaluated once more in float64;
- the loss holds a spectral norm, found by a power iteration that runs until it has converged, so its
  number of rounds differs from call to call.

The twin starts from the same weights and sees the same batches and random numbers. Each loss must be equal
to its twin's, to the last bit, and so must all parameters at the end.
"""

import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from lazytrace import report, script_if_tracing, traced

EPOCHS = 8
BATCH = 64
HELD_OUT = 297
PENALTY = 1e-3

Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class Classifier(nn.Module):
    """Two convolutions with batch normalization, then a linear layer on what they found."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            nn.Dropout(0.2),
        )
        self.head = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Map images, `[batch, 1, 8, 8]`, to logits, `[batch, 10]`."""
        return self.head(self.features(images))


@script_if_tracing
def spectral_norm(weight: Tensor, tolerance: float = 1e-4) -> tuple[Tensor, Tensor]:
    """The largest singular value of a matrix, by power iteration, and the number of rounds that it took.

    It stops when the estimate changes by less than `tolerance`, or after 200 rounds. Gradients flow through
    the last product only, as in Miyato et al., "Spectral Normalization for Generative Adversarial Networks"
    (2018).
    """
    fixed = weight.detach()
    v = torch.ones(fixed.shape[1], dtype=fixed.dtype, device=fixed.device)
    u = fixed.mv(v)
    rounds = torch.zeros((), dtype=torch.int64)
    change = torch.ones((), dtype=fixed.dtype, device=fixed.device)
    while bool(change > tolerance) and bool(rounds < 200):
        before = u.norm()
        u = fixed.mv(v / v.norm())
        v = fixed.t().mv(u / u.norm())
        change = (u.norm() - before).abs()
        rounds = rounds + 1
    return torch.dot(u / u.norm(), weight.mv(v / v.norm())), rounds


def make_loss(model: Classifier) -> Loss:
    """What is to be traced: forward and loss of `model`, which is read as state."""

    def loss(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = model(images)
        norm, rounds = spectral_norm(model.head.weight)
        return F.cross_entropy(logits, labels) + PENALTY * norm, logits, rounds

    return loss


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images in [0, 1] and labels, shuffled: those to train on, then those held out."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def batches(count: int, epoch: int) -> Iterator[Tensor]:
    """The indices of each batch of an epoch; the last one is smaller."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1 + epoch))
    return iter(order.split(BATCH))


class Twins:
    """A traced model and its untraced twin, which are always given the same, and must agree on it."""

    def __init__(self) -> None:
        self.model, self.twin = Classifier(), Classifier()
        self.twin.load_state_dict(self.model.state_dict())
        self.loss = traced(make_loss(self.model), name="loss")
        self.twin_loss = make_loss(self.twin)
        self.optimizers = [torch.optim.Adam(m.parameters(), lr=3e-3) for m in (self.model, self.twin)]
        self.steps = 0
        self.rounds: set[int] = set()

    def both(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Call both losses with the same random numbers and compare; return them, and the logits."""
        torch.manual_seed(self.steps)
        loss, logits, rounds = self.loss(images, labels)
        torch.manual_seed(self.steps)
        expected, expected_logits, expected_rounds = self.twin_loss(images, labels)
        assert torch.equal(loss, expected), f"step {self.steps}: loss {loss.item()}, twin {expected.item()}"
        assert torch.equal(logits, expected_logits), f"step {self.steps}: logits differ"
        assert torch.equal(rounds, expected_rounds), (
            f"step {self.steps}: {rounds}, twin {expected_rounds} rounds"
        )
        self.rounds.add(int(rounds))
        self.steps += 1
        return loss, expected, logits

    def train(self, images: Tensor, labels: Tensor) -> float:
        """Take one step of training; return the loss."""
        self.model.train()
        self.twin.train()
        *losses, _ = self.both(images, labels)
        for loss, optimizer in zip(losses, self.optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return losses[0].item()

    def evaluate(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """The loss and the accuracy, a share of 1, without gradients."""
        self.model.eval()
        self.twin.eval()
        with torch.no_grad():
            loss, _, logits = self.both(images, labels)
        return loss.item(), (logits.argmax(1) == labels).double().mean().item()

    def check_parameters(self) -> None:
        """Compare all parameters, gradients and buffers."""
        for (name, mine), theirs in zip(self.model.named_parameters(), self.twin.parameters(), strict=True):
            assert mine.grad is not None, name
            assert theirs.grad is not None, name
            assert torch.equal(mine.grad, theirs.grad), name
        for name, value in self.model.state_dict().items():
            assert torch.equal(value, self.twin.state_dict()[name]), name


def main() -> None:
    """Train, evaluate, compare, report."""
    torch.manual_seed(0)
    images, labels, held_images, held_labels = load()
    twins = Twins()
    start = time.perf_counter()
    for epoch in range(EPOCHS):
        for index in batches(len(labels), epoch):
            train_loss = twins.train(images[index], labels[index])
        loss, accuracy = twins.evaluate(held_images, held_labels)
        print(f"epoch {epoch + 1}: loss {train_loss:.4f}, held out {loss:.4f}, accuracy {accuracy:.2%}")
    twins.check_parameters()

    for model in (twins.model, twins.twin):
        model.double()
    loss, accuracy = twins.evaluate(held_images.double(), held_labels)
    print(f"float64: held out {loss:.4f}, accuracy {accuracy:.2%}")
    print(f"{twins.steps} losses equal to the untraced twin's, in {time.perf_counter() - start:.1f} s")
    print(f"power iterations took {min(twins.rounds)} to {max(twins.rounds)} rounds\n")
    print(report(), end="")

    assert accuracy > 0.95, accuracy
    assert len(twins.rounds) > 1, "the loop took the same number of rounds at each call"
    stats = twins.loss.stats()
    # A whole batch, the last batch, an evaluation, an evaluation in float64.
    assert (stats.calls, stats.recordings, stats.retraces) == (twins.steps, 4, 3), stats
    assert (stats.hits, stats.eager_calls) == (twins.steps - 4, 0), stats


if __name__ == "__main__":
    main()
