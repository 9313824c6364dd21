"""Tensors of no dimensions as indices, whose value torch asks for."""

from __future__ import annotations

import torch

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


def pairs(n, size=3, dtype=torch.int64):
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randint(0, size, (4,), generator=generator).to(dtype)  # noqa: E731
    return [call(draw(), draw()) for _ in range(n)]


@cases(hits=9)
def a_confusion_matrix(trace):
    counts = torch.zeros(3, 3, dtype=torch.long)

    def step(labels, found):
        for t, p in zip(labels.view(-1), found.view(-1), strict=True):
            counts[t.long(), p.long()] += 1

    return trace(step), pairs(10), lambda: counts


@cases(hits=9)
def one_index(trace):
    table = torch.arange(12.0).view(3, 4)

    def step(a, b):
        return table[a[0]] + table[b[1]]

    return trace(step), pairs(10)


@cases(hits=9)
def negative_ones(trace):
    table = torch.arange(12.0).view(3, 4)

    def step(a, b):
        return table[a[0] - 3, ..., None], table[:, b[0] - 2]

    return trace(step), pairs(10)


@cases(hits=9)
def beside_slices(trace):
    table = torch.arange(24.0).view(3, 2, 4)

    def step(a, b):
        return table[a[0], :, 1:3], table[..., b[0]], table[None, a[1], 1]

    return trace(step), pairs(10)


@cases(hits=9)
def other_whole_types(trace):
    table = torch.arange(12.0).view(3, 4)

    def step(a, b):
        return table[a[0]], table[b[0].to(torch.int16)], table[b[1].to(torch.int8)]

    return trace(step), pairs(10, dtype=torch.int32)


@cases(hits=9)
def masks_of_bool_and_uint8(trace):
    table = torch.arange(3.0)

    def step(a, b):
        return table[(a[0] > 5)].sum(), table[torch.tensor(True)] + b[0]

    return trace(step), pairs(10)


@cases(hits=9)
def set_to_a_row(trace):
    table = torch.zeros(3, 4)

    def step(a, b):
        table[a[0]] = b.float()
        table[a[1], b[1]] = 7

    return trace(step), pairs(10), lambda: table


@cases(hits=9)
def the_largest(trace):
    def step(a, b):
        scores = a * 1.5 - b
        return scores[scores.argmax()], a[scores.argmin()]

    return trace(step), pairs(10)


@cases(hits=7)
def gradients_flow_through_it(trace):
    weight = torch.arange(12.0).view(3, 4).requires_grad_()

    def step(a, b):
        weight.grad = None
        loss = (weight[a[0]] * weight[b[0], 2]).sum()
        loss.backward()
        return loss.detach()

    return trace(step), pairs(9), lambda: weight.grad


@cases(hits=6)
def one_that_is_out_of_bounds(trace):
    table = torch.arange(3.0)

    def step(a, b):
        return table[a[0]] * 2

    good, bad = torch.tensor([1, 2]), torch.tensor([3, 0])
    steps = [call(bad if i % 4 == 3 else good.roll(i), good) for i in range(10)]
    return trace(step), steps


@cases(hits=6)
def one_that_is_out_of_bounds_behind_a_write(trace):
    table, seen = torch.arange(3.0), torch.zeros(2)

    def step(a, b):
        seen.add_(1)
        return table[a[0]] * 2

    good, bad = torch.tensor([1, 2]), torch.tensor([3, 0])
    steps = [call(bad if i % 4 == 3 else good.roll(i), good) for i in range(10)]
    return trace(step), steps, lambda: seen


@cases(hits=6)
def a_pointer_into_a_queue(trace):
    queue, pointer = torch.zeros(4, 8), torch.zeros(1, dtype=torch.long)

    def step(keys):
        at = int(pointer)
        queue[:, at : at + 2] = keys.T
        pointer[0] = (at + 2) % 8
        return queue.sum()

    return trace(step), [call(X(2, 4) + i) for i in range(10)], lambda: (queue, pointer)


@cases(hits=8)
def floats_of_a_deque_as_a_vector(trace):
    import collections

    def step(x, first, last):
        returns, total = collections.deque(), 0.0
        for reward in (last, 1.0, first):
            total = reward + 0.9 * total
            returns.appendleft(total)
        return x * torch.tensor(returns), torch.tensor(list(returns), dtype=torch.float64)

    return trace(step), [call(X(3), 0.5 * i, 2.0 + i) for i in range(10)]


@cases(hits=2)
def a_deque_of_so_many(trace):
    import collections

    def step(x, n):
        kept = collections.deque([n, n + 1], n)
        kept.extend((1.5, n, 2.5))
        return x * sum(kept), collections.deque(maxlen=n).maxlen, len(collections.deque(iterable=[n, n]))

    return trace(step), [call(X(3), n) for n in (1, 2, 3, 1, 0, 2, 3)]


@cases(hits=8)
def ints_and_floats_as_a_vector(trace):
    def step(x, a, b):
        return (
            x,
            torch.tensor([a, a + 1]),
            torch.tensor([a, b, 1]),
            torch.tensor((b,)),
            torch.tensor([a], dtype=torch.float16),
        )

    return trace(step), [call(X(3), i, 0.1 * i) for i in range(10)]


# ---------------------------------------------------------------- sparse tensors
def sparse(n):
    return (torch.arange(6.0).view(2, 3) + n).to_sparse()


def indexed(use):
    """What a use of an index gives or raises, for all numbers."""

    def make(trace):
        step = trace(lambda t, n: use(t, n))

        def one(n):
            t = sparse(n)
            try:
                found = step(t, n)
            except (TypeError, IndexError, NotImplementedError) as error:
                return type(error), str(error)[:40], t.to_dense()
            return found.to_dense(), t.to_dense()

        return one, [call(n) for n in (1, 1, 0, 3, 0, 2, 1, 0)]

    return make


@cases(hits=1)
def a_row_of_a_sparse_tensor(trace):
    return indexed(lambda t, n: t[n] * 2)(trace)


@cases(hits=1)
def a_slice_that_says_nothing(trace):
    return indexed(lambda t, n: t[n:, None] * 2)(trace)


@cases(eager="raised TypeError")
def all_of_a_sparse_tensor_is_set(trace):
    def use(t, n):
        t[...] = sparse(n + 1)
        return t

    return indexed(use)(trace)


@cases(eager="raised TypeError")
def a_part_of_a_sparse_tensor_is_set(trace):
    def use(t, n):
        t[:n] = torch.ones(n, 3)
        return t

    return indexed(use)(trace)


@cases.parametrize
def test_agrees(make, expected):
    check(make, **expected)
