"""Texts that are looked up by a number that is followed: names of classes, words of a vocabulary."""

from __future__ import annotations

import io

import torch

import lazytrace
from tests.soundness.runner import Cases, call, check

cases = Cases()

ANIMALS = ["cat", "dog", "bird", "fish", "cow"]


def scores(*best):
    """Calls of which each has another largest entry."""
    return [call(torch.eye(5)[i] + 0.1) for i in best]


MANY = (0, 3, 1, 4, 2, 2, 0, 4, 1, 3)


@cases(hits=9, recordings=1)
def name_of_the_largest(trace):
    names = list(ANIMALS)
    return trace(lambda x: names[int(x.argmax())]), scores(*MANY)


@cases(hits=9, recordings=1)
def of_a_tuple(trace):
    names = tuple(ANIMALS)
    return trace(lambda x: names[x.argmax().item()]), scores(*MANY)


@cases(hits=9, recordings=1)
def of_a_dict(trace):
    names = dict(enumerate(ANIMALS))
    return trace(lambda x: f"{names[x.argmax().item()]} {x.sum().item():.2f}"), scores(*MANY)


@cases(hits=9, recordings=1)
def counted_from_the_end(trace):
    names = list(ANIMALS)
    return trace(lambda x: names[x.argmax().item() - 5]), scores(*MANY)


@cases(hits=9, recordings=1)
def all_of_a_batch(trace):
    names = dict(enumerate(ANIMALS))

    def step(x):
        return [names[i] for i in torch.stack([x, x.flip(0)]).argmax(1).tolist()]

    return trace(step), scores(*MANY)


@cases(hits=9, recordings=1)
def printed_and_kept(trace):
    names, seen, out = list(ANIMALS), [], io.StringIO()

    def step(x):
        name = names[x.argmax().item()]
        print("it is a", name, file=out)
        seen.append(name.upper())
        return x + 1

    return trace(step), scores(*MANY), lambda: (seen, out.getvalue())


@cases(hits=4)
def an_entry_changes(trace):
    names = list(ANIMALS)

    def change():
        names[1] = "wolf"

    return trace(lambda x: names[x.argmax().item()]), [*scores(0, 1, 2), change, *scores(0, 1, 2)]


@cases(hits=4)
def an_entry_of_a_dict_changes(trace):
    names = dict(enumerate(ANIMALS))

    def change():
        names[1] = "wolf"

    return trace(lambda x: names[x.argmax().item()]), [*scores(0, 1, 2), change, *scores(0, 1, 2)]


@cases(hits=2)
def an_entry_becomes_a_number(trace):
    names = list(ANIMALS)

    def change():
        names[1] = 7

    return trace(lambda x: names[x.argmax().item()]), [*scores(0, 1, 2), change, *scores(0, 1, 2)]


@cases(hits=2)
def it_gets_shorter(trace):
    names = list(ANIMALS)
    return trace(lambda x: names[x.argmax().item()]), [*scores(0, 4, 2), names.pop, *scores(0, 4, 2, 4, 1)]


@cases(hits=3)
def a_key_goes(trace):
    names = dict(enumerate(ANIMALS))

    def change():
        del names[4]

    return trace(lambda x: names[x.argmax().item()]), [*scores(0, 4, 2), change, *scores(0, 4, 2, 4, 1)]


@cases(hits=3)
def too_short_from_the_start(trace):
    names = ANIMALS[:3]
    return trace(lambda x: names[x.argmax().item()]), scores(0, 4, 2, 3, 1, 0, 2, 4)


@cases(hits=3)
def what_is_missing_is_caught(trace):
    names = ANIMALS[:3]

    def step(x):
        try:
            return names[x.argmax().item()]
        except IndexError as error:
            return str(error)

    return trace(step), scores(0, 4, 2, 3, 1, 0, 2, 4)


@cases(hits=2)
def the_table_is_replaced(trace):
    class Model:
        names = tuple(ANIMALS)

    model = Model()

    def change():
        model.names = ("a", "b", "c", "d", "e")

    return trace(lambda x: model.names[x.argmax().item()]), [*scores(0, 1), change, *scores(1, 2, 3)]


@cases(hits=2)
def the_call_writes_to_the_table(trace):
    names = list(ANIMALS)

    def step(x):
        names[1] = "wolf"
        return names[x.argmax().item()]

    def change():
        names[1] = "dog"

    return trace(step), [*scores(0, 1, 2), change, *scores(1, 2, 0, 1)], lambda: names


@cases(hits=3, recordings=1)
def numbers_are_followed(trace):
    weights = [0.5, 1.5, 2.5]
    return trace(lambda x: x * weights[x.argmax().item()]), scores(0, 1, 2, 0, 1, 2)[:4]


@cases(hits=1)
def whoever_looks_at_it_reads_the_number(trace):
    names = list(ANIMALS)

    def step(x):
        return x * 2 if names[x.argmax().item()] == "dog" else x

    return trace(step), scores(0, 1, 0, 1, 1)


@cases(hits=1)
def a_key_of_another_dict(trace):
    names, counts = list(ANIMALS), dict.fromkeys(ANIMALS, 0)

    def step(x):
        counts[names[x.argmax().item()]] += 1
        return x

    return trace(step), scores(0, 1, 0, 1, 1, 0), lambda: counts


@cases(hits=3)
def methods_of_the_text(trace):
    names = list(ANIMALS)

    def step(x):
        name = names[x.argmax().item()]
        return [name.strip(), name.title().ljust(8, "."), name.zfill(6), name.removeprefix("c"), name.lower()]

    return trace(step), scores(0, 3, 2, 1, 4)


@cases(hits=0, recordings=3)
def methods_that_look(trace):
    names = list(ANIMALS)
    return trace(lambda x: names[x.argmax().item()].startswith("c")), scores(0, 3, 2)


@cases(hits=3)
def wrong_arguments_of_a_method(trace):
    names = list(ANIMALS)

    def step(x):
        try:
            return names[x.argmax().item()].ljust(8, "..")
        except TypeError as error:
            return str(error) + str(x.sum().item())

    return trace(step), scores(0, 0, 0, 0, 0)


@cases(hits=5)
def an_entry_is_deleted(trace):
    def fn(x):
        names = list(ANIMALS)
        del names[int(x.argmax())]
        return names, x * len(names)

    return trace(fn), scores(*MANY)


@cases(hits=5)
def an_entry_of_a_dict_is_deleted(trace):
    def fn(x):
        names = dict(enumerate(ANIMALS))
        del names[x.argmax().item()]
        return names, names.get(int(x.argmax()), "none")

    return trace(fn), scores(*MANY)


@cases(hits=6)
def an_entry_is_deleted_at_a_size(trace):
    def fn(x):
        names = list(ANIMALS)
        del names[x.shape[0] % 5]
        return names, x + 1

    return trace(fn), [call(torch.ones(n)) for n in (3, 5, 2, 0, 1, 3, 5, 2, 0, 1, 4)]


@cases(hits=5)
def an_entry_of_a_tuple_is_deleted(trace):
    def fn(x):
        names = tuple(ANIMALS)
        try:
            del names[int(x.argmax())]
        except TypeError as error:
            return str(error)

    return trace(fn), scores(*MANY)


@cases(hits=3)
def a_row_of_a_tensor_is_deleted(trace):
    def fn(x):
        try:
            del x[x.shape[0] - 1 :]
        except TypeError:
            return x * x.shape[0]

    return trace(fn, dynamic=True), [call(torch.ones(n)) for n in (3, 5, 2, 0, 1, 3, 5, 2, 4)]


@cases(hits=8)
def an_element_of_a_tensor_is_deleted(trace):
    def fn(x):
        try:
            del x[x.argmax()]
        except TypeError:
            return x * 2

    return trace(fn), scores(*MANY)


@cases.parametrize
def test_tables(make, expected):
    check(make, **expected)


def test_a_set_of_names_is_asked_by_value():
    names = ["a", "b"]
    step = lazytrace.traced(lambda x: {names[x.argmax().item()]})
    out = [step(torch.eye(2)[i]) for i in (0, 1, 0, 1)]
    assert out == [{"a"}, {"b"}, {"a"}, {"b"}]


def test_the_text_is_a_str():
    names = ["a", "b"]
    step = lazytrace.traced(lambda x: names[x.argmax().item()])
    for i in (0, 1, 1):
        name = step(torch.eye(2)[i])
        assert (type(name), name) == (str, names[i])
    assert step.stats().hits == 2
