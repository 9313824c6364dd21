"""Loaders of data that a call goes through: a whole epoch is one call."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import data

from tests.soundness.runner import Cases, call, check

cases = Cases()


class Rows(data.Dataset):
    """A dataset as users write it."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        return {"x": self.x[at] * 2, "y": int(self.y[at])}


def arrays():
    torch.manual_seed(0)
    return torch.randn(10, 3), torch.randint(0, 2, (10,))


def collate(rows):
    return {"x": torch.stack([row["x"] for row in rows]), "y": torch.tensor([row["y"] for row in rows])}


LOADERS = {
    "in_order": lambda x, y: data.DataLoader(data.TensorDataset(x, y), 5),
    "shuffled": lambda x, y: data.DataLoader(data.TensorDataset(x, y), 5, shuffle=True),
    "the_rest_dropped": lambda x, y: data.DataLoader(
        data.TensorDataset(x, y), 4, shuffle=True, drop_last=True
    ),
    "a_short_last_batch": lambda x, y: data.DataLoader(data.TensorDataset(x, y), 4, shuffle=True),
    "a_dataset_of_ones_own": lambda x, y: data.DataLoader(Rows(x, y), 5, shuffle=True),
    "batches_of_ones_own": lambda x, y: data.DataLoader(Rows(x, y), 5, shuffle=True, collate_fn=collate),
    "part_of_it": lambda x, y: data.DataLoader(data.Subset(data.TensorDataset(x, y), range(0, 10, 2)), 5),
    "by_weight": lambda x, y: data.DataLoader(
        data.TensorDataset(x, y), 5, sampler=data.WeightedRandomSampler(torch.ones(10), 10)
    ),
}


def epoch_of(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def epoch():
        total = 0.0
        for batch in loader:
            x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        return total

    return epoch


@pytest.mark.parametrize("loader", LOADERS.values(), ids=list(LOADERS))
def test_an_epoch(loader):
    def make(trace):
        net = nn.Linear(3, 2)
        epoch = trace(epoch_of(net, loader(*arrays())))
        torch.manual_seed(1)
        return epoch, [call() for _ in range(6)], net.state_dict

    check(make, hits=4)


@cases(hits=2)
def training_and_evaluation(trace):
    """The better of two ways is kept, behind draws of a generator that the loader has made."""
    x, y = arrays()
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 2))
    train = epoch_of(net, data.DataLoader(data.TensorDataset(x, y), 5, shuffle=True))
    test = data.DataLoader(data.TensorDataset(x, y), 5)
    best = {"right": 0.0}

    def epoch():
        net.train()
        total = train()
        net.eval()
        with torch.no_grad():
            right = sum((net(a).argmax(1) == b).sum().item() for a, b in test)
        if right > best["right"]:
            best["right"] = right
        return total, right

    return trace(epoch), [call() for _ in range(8)], lambda: (net.state_dict(), best)


@cases(hits=3)
def many_rows(trace):
    """One step gives all places of an order."""
    torch.manual_seed(0)
    x, y = torch.randn(90, 3), torch.randint(0, 2, (90,))
    net = nn.Linear(3, 2)
    epoch = trace(epoch_of(net, data.DataLoader(data.TensorDataset(x, y), 30, shuffle=True)))
    torch.manual_seed(1)
    return epoch, [call() for _ in range(5)], net.state_dict


@cases(hits=3)
def a_loader_of_the_call(trace):
    x, y = arrays()
    net = nn.Linear(3, 2)

    def step():
        return epoch_of(net, data.DataLoader(data.TensorDataset(x, y), 5, shuffle=True))()

    return trace(step), [call() for _ in range(5)], net.state_dict


@cases(hits=1)
def a_dataset_that_changes(trace):
    x, y = arrays()
    rows = Rows(x, y)
    loader = data.DataLoader(rows, 5, shuffle=True)

    def fewer():
        rows.x = rows.x[:7]

    def other_values():
        rows.y = 1 - rows.y

    step = trace(lambda: [batch["x"].sum() * batch["y"] for batch in loader])
    return step, [call(), call(), call(), other_values, call(), call(), fewer, call(), call()]


@cases.parametrize
def test_loaders(make, expected):
    check(make, **expected)
