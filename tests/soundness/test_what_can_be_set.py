"""What Python lets be set on objects that are known by their identity: classes, modules, cells, names."""

from __future__ import annotations

import abc
import collections.abc
import types

import torch

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


def changed(name, make_state, function, change, hits=2):
    """A case: record and replay, change the state, record and replay again."""

    def make(trace):
        state = make_state()
        return trace(lambda x: function(x, state)), around(lambda: change(state), X())

    make.__name__ = name
    cases(make, hits=hits)


# ---------------------------------------------------------------- the class of a class, and of a module
class First(type):
    """A metaclass, with all that C code looks up on one."""

    value = 2

    @property
    def computed(cls):
        return 2

    def __call__(cls, x):
        return x * 2

    def __len__(cls):
        return 2

    def __getitem__(cls, key):
        return key * 2

    def __iter__(cls):
        return iter([1, 2])

    def __contains__(cls, key):
        return True

    def __mul__(cls, other):
        return other * 2

    def __bool__(cls):
        return True

    def __instancecheck__(cls, instance):
        return True


class Second(First):
    """Another one that answers otherwise."""

    value = 7

    @property
    def computed(cls):
        return 7

    def __call__(cls, x):
        return x * 7

    def __len__(cls):
        return 7

    def __getitem__(cls, key):
        return key * 7

    def __iter__(cls):
        return iter([1, 2, 3])

    def __contains__(cls, key):
        return False

    def __mul__(cls, other):
        return other * 7

    def __bool__(cls):
        return False

    def __instancecheck__(cls, instance):
        return False


def set_class(state):
    state.__class__ = Second


METACLASS = {
    "attribute": lambda x, cls: x * cls.value,
    "property": lambda x, cls: x * cls.computed,
    "call": lambda x, cls: cls(x),
    "length": lambda x, cls: x * len(cls),
    "item": lambda x, cls: x * cls[3],
    "iteration": lambda x, cls: x * sum(cls),
    "membership": lambda x, cls: x * (2 if 4 in cls else 3),
    "operator": lambda x, cls: cls * x,
    "truth": lambda x, cls: x * 2 if cls else x * 3,
    "isinstance": lambda x, cls: x * 2 if isinstance(x, cls) else x * 3,
    "type": lambda x, cls: x * 2 if type(cls) is First else x * 3,
}
for what, asks in METACLASS.items():
    changed(f"metaclass_{what}", lambda: First("Made", (), {}), asks, set_class)


class PlainModule(types.ModuleType):
    value = property(lambda self: 2)


class OtherModule(types.ModuleType):
    value = property(lambda self: 7)


def module_of(kind):
    made = types.ModuleType("module_of_a_test")
    made.__dict__["value"] = 5
    if kind:
        made.__class__ = kind
    return made


for kind in (None, PlainModule):
    changed(
        f"module_becomes_another_from_{kind.__name__ if kind else 'plain'}",
        lambda kind=kind: module_of(kind),
        lambda x, module: x * module.value,
        lambda module: setattr(module, "__class__", OtherModule),
    )


@cases(hits=2)
def descriptor_of_a_metaclass_in_python(trace):
    """It runs when the function asks, and never for a guard."""
    asked = []

    class Described:
        def __get__(self, cls, meta):
            asked.append(1)
            return cls.value

        def __set__(self, cls, value):
            raise AttributeError

    class Meta(type):
        value = 2
        described = Described()

    made = Meta("Made", (), {})
    wanted = trace(lambda x: x * made.value)
    return wanted, around(lambda: setattr(made, "value", 5), X()), lambda: asked


# ---------------------------------------------------------------- what a class is to the interpreter
class Pairs:
    """Has what a mapping has, but is none until it is registered."""

    def __init__(self):
        self.held = {"a": 2}

    def get(self, key, default=None):
        return self.held.get(key, default)

    def keys(self):
        return self.held.keys()

    def __len__(self):
        return len(self.held)


def match_mapping(x, pairs):
    match pairs:
        case {"a": factor}:
            return x * factor
    return x * 3


def match_sequence(x, pairs):
    match pairs:
        case [*_]:
            return x * 2
    return x * 3


def fresh_pairs():
    return type("Made", (Pairs,), {})()


changed(
    "registered_as_a_mapping",
    fresh_pairs,
    match_mapping,
    lambda p: collections.abc.Mapping.register(type(p)),
)
changed(
    "registered_as_a_sequence",
    fresh_pairs,
    match_sequence,
    lambda p: collections.abc.Sequence.register(type(p)),
)


class FirstError(Exception):
    pass


class SecondError(Exception):
    pass


def catches(x, error):
    try:
        raise error
    except SecondError:
        return x * 2
    except FirstError:
        return x * 3


changed(
    "bases_of_an_exception",
    lambda: type("Made", (FirstError,), {}),
    catches,
    lambda error: setattr(error, "__bases__", (SecondError,)),
)


@cases(hits=1, eager="raised TypeError")
def a_class_that_becomes_abstract(trace):
    Made = abc.ABCMeta("Made", (), {"value": 2})

    def change():
        Made.__abstractmethods__ = frozenset({"missing"})

    return trace(lambda x: x * Made().value), around(change, X())


def with_super():
    class Base:
        def factor(self):
            return 2

    class Middle(Base):
        def factor(self):
            return 7

    class Top(Middle):
        def factor(self):
            return super().factor()

    top = Top()
    top.other = Middle
    return top


changed(
    "the_cell_behind_super",
    with_super,
    lambda x, top: x * top.factor(),
    lambda top: setattr(type(top).factor.__closure__[0], "cell_contents", top.other),
)


# ---------------------------------------------------------------- names that are written as text
def named():
    return type("Made", (), {})


for attribute, words in (("__qualname__", str), ("__module__", repr)):
    changed(
        f"{attribute}_by_{words.__name__}",
        named,
        lambda x, cls, words=words: (x * 2, words(cls)),
        lambda cls, attribute=attribute: setattr(cls, attribute, "Another"),
    )
changed(
    "name_of_the_class_of_a_container",
    lambda: type("Made", (collections.OrderedDict,), {})(a=1),
    lambda x, made: (x * 2, repr(made)),
    lambda made: setattr(type(made), "__name__", "Another"),
)


# ---------------------------------------------------------------- what torch keeps beside a tensor
@cases(eager="reads .grad_dtype of a tensor")
def dtype_of_gradients(trace):
    weight = torch.ones(3, requires_grad=True)
    change = lambda: setattr(weight, "grad_dtype", torch.float64)  # noqa: E731
    return trace(lambda x: (x * 2, weight.grad_dtype)), around(change, X())


COMPUTED_LOOKS = {
    *(
        "T",
        "H",
        "mT",
        "mH",
        "shape",
        "dtype",
        "layout",
        "device",
        "ndim",
        "nbytes",
        "itemsize",
        "real",
        "imag",
    ),
    *(
        "is_cuda",
        "is_mtia",
        "is_cpu",
        "is_xla",
        "is_xpu",
        "is_ipu",
        "is_sparse",
        "is_sparse_csr",
        "is_mkldnn",
    ),
    *(
        "is_mps",
        "is_maia",
        "is_vulkan",
        "is_quantized",
        "is_meta",
        "is_nested",
        "_has_symbolic_sizes_strides",
    ),
    *("__dict__", "__weakref__", "_python_dispatch", "_cdata", "_version", "grad_fn", "_grad_fn", "is_leaf"),
    *("retains_grad", "data", "_grad", "grad", "_base", "volatile", "output_nr", "requires_grad", "name"),
    *("_backward_hooks", "_post_accumulate_grad_hooks", "grad_dtype"),
}


def test_attributes_that_torch_computes_are_known():
    """A new one must be judged: whether it follows from how the tensor looks, or is kept beside it."""
    kinds = types.GetSetDescriptorType
    classes = (torch.Tensor, torch._C.TensorBase)
    found = {name for cls in classes for name, value in vars(cls).items() if isinstance(value, kinds)}
    assert found == COMPUTED_LOOKS


@cases(hits=5)
def what_an_operator_of_torch_ops_calls(trace):
    packet, overload = torch.ops.aten.expm1, torch.ops.aten.sinh.default
    own = packet._op, overload._op

    def fn(x):
        return packet(x), torch.ops.aten.sinh.default(x)

    def put(*ops):
        packet._op, overload._op = ops

    calls = [call(X()), call(X())]
    first, second = (lambda x: x * 5, own[1]), (own[0], lambda x: x * 7)
    steps = [*calls, lambda: put(*first), *calls, lambda: put(*second), *calls]
    return trace(fn), [*steps, lambda: put(*own), *calls]


@cases.parametrize
def test_what_can_be_set(make, expected):
    check(make, **expected)
