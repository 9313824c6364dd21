"""What looks like a value and can change in place: members of enums, matches, containers of C."""

from __future__ import annotations

import array
import collections
import dataclasses
import enum
import re
import types

import numpy as np
import torch

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


# ---------------------------------------------------------------- members of enums
def member(name, kind, read, change, **expected):
    """A case: the function reads a member of an enum that is made anew, and the member changes."""

    def make(trace):
        made = kind()
        return trace(lambda x: x * read(made)), around(lambda: change(made), X())

    make.__name__ = name
    cases(make, **expected)


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


@dataclasses.dataclass
class Data:
    k: int
    held: list


def derived(base, value):
    return lambda: enum.Enum("Made", {"A": value(), "B": value()}, type=base).A


def append(made):
    made.append(9)


def set_k(made):
    made.k = 9


member("a_list", derived(list, lambda: [1, 2]), sum, append, hits=2)
member("the_length_of_a_list", derived(list, lambda: [1, 2]), len, append, hits=2)
member("an_entry_of_a_list", derived(list, lambda: [1, 2]), lambda a: a[0], lambda a: a.insert(0, 7), hits=2)
member(
    "an_entry_of_a_dict", derived(dict, lambda: {"k": 1}), lambda a: a["k"], lambda a: a.update(k=9), hits=2
)
member("all_of_a_set", derived(set, lambda: {1, 2}), sum, lambda a: a.add(9), hits=2)
member("a_slot", derived(Slotted, lambda: 1), lambda a: a.k, set_k, hits=2)
member("a_field", derived(Data, lambda: (1, [2])), lambda a: a.k, set_k, hits=2)
member(
    "a_list_in_a_field",
    derived(Data, lambda: (1, [2])),
    lambda a: sum(a.held),
    lambda a: a.held.append(9),
    hits=2,
)
member(
    "a_list_in_a_tuple",
    derived(tuple, lambda: ([1], 2)),
    lambda a: len(a[0]) + a[1],
    lambda a: a[0].append(9),
    hits=2,
)
member(
    "the_text_of_a_tuple",
    derived(tuple, lambda: ([1], 2)),
    lambda a: len(tuple.__repr__(a)),
    lambda a: a[0].append(9),
    hits=2,
)


@cases(hits=3)
def a_member_of_an_enum_of_lists_as_an_argument(trace):
    made = derived(list, lambda: [1, 2])()
    twice = [call(X(), made)] * 2
    return trace(lambda x, a: x * sum(a)), [*twice, lambda: append(made), *twice, *twice]


class Tagged(enum.Enum):
    """Its members hold what can change."""

    A = (1,)


def held_by_a_member(name, body, change, **expected):
    """A case: the function hands on what a member holds, which is the same object at each call."""

    def make(trace):
        Tagged.A._value_ = [1, 2]
        fn = trace(lambda x: (x + 1, body(Tagged.A)))
        return fn, around(change, X()), lambda: Tagged.A._value_

    make.__name__ = name
    cases(make, **expected)


def same_value():
    pass


def other_value():
    Tagged.A._value_ = [5]


held_by_a_member("the_value_of_a_member", lambda a: a.value, same_value, hits=3)
held_by_a_member("the_value_of_a_member_that_is_set", lambda a: a.value, other_value, hits=3)
held_by_a_member("the_value_of_a_member_inside", lambda a: {"k": a.value}, other_value, hits=3)
held_by_a_member("an_entry_of_the_value_of_a_member", lambda a: a.value[0], other_value, hits=2)
held_by_a_member("the_value_of_a_member_that_grows", lambda a: a.value.append(3), other_value, hits=2)


@cases(eager="sets .n of a Tagged")
def a_number_of_a_member_that_is_counted(trace):
    Tagged.A.n = 0

    def fn(x):
        Tagged.A.n += 1
        return x * Tagged.A.n

    return trace(fn), [call(X())] * 4, lambda: Tagged.A.n


class Whole(enum.IntEnum):
    """Has no weak references."""

    A = 1


class Bits(enum.IntFlag):
    """The same, with a member for each sum of members."""

    A = 1
    B = 2


def attribute_of(name, member, body, value, hits):
    """A case: an attribute of a member that has no weak references is another one."""

    def make(trace):
        member.n = [1]
        return trace(lambda x: (x + 1, body(member))), around(lambda: setattr(member, "n", value), X())

    make.__name__ = name
    cases(make, hits=hits)


attribute_of("a_number_of_a_whole_member", Whole.A, lambda a: a.n[0], [2], 2)
attribute_of("a_list_of_a_whole_member", Whole.A, lambda a: Whole.A.n, [2], 3)
attribute_of("an_entry_of_a_flag", Bits.B, lambda a: Bits.B.n[0], [2], 2)
attribute_of("a_list_of_a_sum_of_flags", Bits.A | Bits.B, lambda a: Bits(3).n, [2], 3)
attribute_of("a_number_of_a_member_by_its_value", Whole.A, lambda a: len(Whole(1).n), [2, 3], 2)


@cases(hits=4)
def a_sum_of_flags_in_a_list(trace):
    flags = Bits.A | Bits.B
    flags.n = 1
    twice = [call(X(), [flags])] * 2
    return trace(lambda x, a: x * a[0].n), [*twice, lambda: setattr(flags, "n", 2), *twice, *twice]


def inside_a_value(name, hold, read):
    """A case: what an immutable value in state holds is given another class."""

    def make(trace):
        kinds = [enum.Enum("Kind", {"A": 1}), enum.Enum("Kind", {"A": 1})]
        for factor, kind in enumerate(kinds, 2):
            kind.factor = property(lambda _, factor=factor: factor)
        one = kinds[0].A
        state = types.SimpleNamespace(held=hold(one))
        fn = trace(lambda x: x * read(state.held).factor)
        return fn, around(lambda: setattr(one, "__class__", kinds[1]), X())

    make.__name__ = name
    cases(make, hits=2)


inside_a_value("a_member_in_a_tuple", lambda one: ((one,), 1), lambda held: held[0][0])
inside_a_value("a_member_in_a_slice", lambda one: slice(one), lambda held: held.stop)
inside_a_value("a_member_in_a_frozenset", lambda one: frozenset([one]), lambda held: next(iter(held)))


@cases(hits=2)
def a_named_tuple_of_another_class(trace):
    class Pair(collections.namedtuple("Pair", "a b")):
        __slots__ = ()
        factor = 2

    class Other(collections.namedtuple("Pair", "a b")):
        __slots__ = ()
        factor = 3

    state = types.SimpleNamespace(pair=Pair(1, 2))
    return trace(lambda x: x * state.pair.factor), around(
        lambda: setattr(state.pair, "__class__", Other), X()
    )


# ---------------------------------------------------------------- keys of dicts
def keyed(name, base, key, read):
    """A case: a dict has keys of a class of its own, which come to be unlike the one that is asked for."""

    def make(trace):
        class Key(base):
            __hash__ = base.__hash__

        held = {Key(key): 1, Key(key * 2): 2}

        def change():
            Key.__eq__ = lambda self, other: False
            Key.__hash__ = base.__hash__

        return trace(lambda x: x * (2 + read(held, key))), around(change, X())

    make.__name__ = name
    cases(make, hits=1, eager="reads-odd-key")


keyed("a_key_of_a_class_of_ints", int, 1, lambda held, key: key in held)
keyed("a_key_of_a_class_of_texts", str, "a", lambda held, key: key in held)
keyed("an_entry_of_a_class_of_ints", int, 1, lambda held, key: held.get(key, 5))
keyed("an_entry_of_a_class_of_texts", str, "a", lambda held, key: held.get(key, 5))


# ---------------------------------------------------------------- texts of frozensets
@cases(eager="of which numpy may warn")
def the_text_of_a_frozenset_of_numpys(trace):
    held = [np.float32(1), np.float32(2)]

    def change():
        np.set_printoptions(legacy="1.25")

    def undo():
        np.set_printoptions(legacy=False)

    return trace(lambda x: x * len(repr(frozenset(held)))), [*around(change, X()), undo]


# ---------------------------------------------------------------- matches
def searched(name, text, read):
    """A case: a match over bytes that can be written to, which are."""

    def make(trace):
        subject = text(b"abc")
        match = re.match(rb"(?P<first>.)", subject)
        holder = types.SimpleNamespace(match=match)
        steps = around(lambda: subject.__setitem__(0, 5), X())
        return trace(lambda x: x * read(holder.match)), steps

    make.__name__ = name
    cases(make, eager="reads a")


def of_array(text):
    return array.array("b", text)


searched("a_group_of_a_bytearray", bytearray, lambda m: m.group(1)[0])
searched("an_item_of_a_match_over_a_bytearray", bytearray, lambda m: m[0][0])
searched("the_groups_of_a_bytearray", bytearray, lambda m: m.groups()[0][0])
searched("a_named_group_of_a_bytearray", bytearray, lambda m: m.groupdict()["first"][0])
searched("a_group_of_an_array", of_array, lambda m: m.group(1)[0])


@cases(hits=3)
def a_match_over_a_text(trace):
    holder = types.SimpleNamespace(match=re.match(".", "abc"))

    def another():
        holder.match = re.match("..", "abc")

    steps = [*around(another, X()), call(X())]
    return trace(lambda x: x * len(holder.match.group())), steps


# ---------------------------------------------------------------- containers of torch's
@cases(eager="reads a UntypedStorage")
def the_length_of_a_storage(trace):
    storage = torch.UntypedStorage(4).fill_(1)
    return trace(lambda x: x * len(storage)), around(lambda: storage.resize_(8), X())


@cases(eager="reads a ScriptList")
def a_list_of_torchscript(trace):
    held = torch._C.ScriptList([1, 2])
    return trace(lambda x: x * sum(held) + len(held)), around(lambda: held.append(7), X())


@cases(eager="reads a ScriptDict")
def a_dict_of_torchscript(trace):
    held = torch._C.ScriptDict({"a": 1})
    return trace(lambda x: x * held["a"]), around(lambda: held.__setitem__("a", 4), X())


@cases(eager="reads a ScriptList")
def a_list_of_torchscript_as_an_argument(trace):
    held = torch._C.ScriptList([1, 2])
    return trace(lambda x, a: x * len(a)), around(lambda: held.append(7), X(), held)


# ---------------------------------------------------------------- namespaces
def namespace_of(name, find):
    """A case: the namespace of a module is returned, and changes."""

    def make(trace):
        module = types.ModuleType("lt_module")
        module.k = 1.0
        held = [module]

        def returned(x):
            namespace = function(x)[1]
            return x * namespace["k"], namespace is vars(module)

        function = trace(lambda x: (x * 2, find(held)))
        return returned, around(lambda: setattr(module, "k", 5.0), X())

    make.__name__ = name
    cases(make, hits=3)


namespace_of("the_namespace_of_a_module", lambda held: vars(held[0]))
namespace_of("the_dict_of_a_module", lambda held: held[0].__dict__)
namespace_of("the_namespace_of_a_module_from_an_iterator", lambda held: vars(next(iter(held))))


@cases.parametrize
def test_values_that_can_change(make, expected):
    check(make, **expected)
