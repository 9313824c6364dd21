"""Weak references that a call makes, sets, addresses of tensors, and setters that are inherited."""

import enum
import weakref

import torch

from tests.soundness.runner import Cases, call, check

cases = Cases()


class Place:
    """State of the functions below."""


def steps_of(*changes, count=3):
    """Some calls, and some more behind each change."""
    steps = [call(torch.full((2,), float(i))) for i in range(count)]
    for change in changes:
        steps += [change, *[call(torch.full((2,), float(i))) for i in range(count)]]
    return steps


# ---------------------------------------------------------------- weak references
@cases(hits=7)
def put_on_a_parameter(trace):
    net, place = torch.nn.Linear(2, 2), Place()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net.weight.origin = None

    def run(x):
        net.weight.origin = weakref.ref(net.weight)
        place.ref = weakref.ref(net)
        loss = net(x).sum()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss.detach(), net.weight.origin() is net.weight, place.ref() is net

    def shown():
        refs = net.weight.origin, place.__dict__.get("ref")
        return [ref and ref() in (net, net.weight) for ref in refs[1:]], net.weight, type(refs[0]).__name__

    def again():
        net.weight = torch.nn.Parameter(torch.ones(2, 2))
        net.weight.origin = None
        opt.param_groups[0]["params"][0] = net.weight

    return trace(run), steps_of(lambda: setattr(place, "ref", None), again, again), shown


@cases(hits=4)
def returned(trace):
    net, place = torch.nn.Linear(2, 2), Place()
    place.value = net

    def run(x):
        return place.value(x).sum().detach(), weakref.ref(place.value), weakref.ref(x)

    twin = torch.nn.Linear(2, 2)

    def look(found):
        loss, ref, of_argument = found
        return loss, ref() is place.value, of_argument() is None, ref is weakref.ref(place.value)

    def step(x):
        return lambda: look(run_it(x))

    run_it = trace(run)
    inputs = [torch.full((2,), float(i)) for i in range(3)]
    swap = [lambda: setattr(place, "value", twin)]
    return run_it, [*map(step, inputs), *swap, *map(step, inputs)], lambda: None


@cases(hits=3)
def written_before_a_backward_pass(trace):
    net, place = torch.nn.Linear(2, 2), Place()
    seen = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(place.ref() is net)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    place.ref = None

    def run(x):
        place.ref = weakref.ref(net)
        y = Doubled.apply(net(x).sum())
        place.ref = None
        y.backward()
        return y.detach()

    return trace(run), steps_of(count=5), lambda: (seen, [p.grad for p in net.parameters()])


def asked_for(name, body, **expected):
    def make(trace):
        place = Place()
        place.held, place.also = [], None
        return trace(lambda x: body(x, place)), steps_of(count=6), lambda: len(place.held)

    make.__name__ = name
    cases(make, **expected)


def one_that_a_variable_has_too(x, place):
    made = Place()
    reference = weakref.ref(made)
    place.held.append(made)
    place.held.pop()
    return x * (2 if reference() is made else 3)


def one_that_waiting_code_has_too(x, place):
    def ask():
        return reference() is not None

    made = Place()
    reference = weakref.ref(made)
    assert any([made])
    return x * (2 if ask() else 3), made.__class__ is Place


def one_that_no_variable_has_any_more(x, place):
    made = Place()
    reference = weakref.ref(made)
    place.held.append(made)
    del made
    place.held.pop()
    return x * (2 if reference() is not None else 3)


def one_that_is_gone(x, _):
    reference = weakref.ref(Place())
    return x * (2 if reference() is None else 3)


def one_that_lies_elsewhere_too(x, place):
    if place.also is None:
        place.also = Place()
        place.reference = weakref.ref(place.also)
    place.second = place.also
    alive = place.reference() is not None
    place.second = None
    return x * (2 if alive and place.reference() is place.also else 3)


def of_a_tensor_behind_a_branch(x, _):
    made = x.exp()
    reference = weakref.ref(made)
    twice = made * 2
    del made
    drawn = torch.rand(2)
    return (twice, drawn) if twice.sum() > 25 else (twice - drawn, reference() is None)


def of_a_tensor_that_is_gone(x, _):
    made = x.exp()
    reference = weakref.ref(made)
    twice = made * 2
    del made
    return (twice if x.sum() > 4 else twice - 1), reference() is None


def of_a_tensor_that_a_view_has(x, _):
    made = x * 2
    reference, view = weakref.ref(made), made[0]
    del made
    return view, reference() is None


asked_for("of_a_tensor_behind_a_branch", of_a_tensor_behind_a_branch, hits=0, eager="read-after-change")
asked_for("of_a_tensor_that_is_gone", of_a_tensor_that_is_gone, hits=4)
asked_for("of_a_tensor_that_a_view_has", of_a_tensor_that_a_view_has, eager="let-go")
asked_for("that_a_variable_has_too", one_that_a_variable_has_too, hits=4)
asked_for("that_waiting_code_has_too", one_that_waiting_code_has_too, hits=4)
asked_for("that_no_variable_has_any_more", one_that_no_variable_has_any_more, hits=4)
asked_for("that_is_gone", one_that_is_gone, hits=4)
asked_for("that_lies_elsewhere_too", one_that_lies_elsewhere_too, hits=3)


def to_what_the_call_has_made(trace):
    place = Place()
    place.ref = None

    def run(x):
        y = x * 2
        place.ref = weakref.ref(y)
        return place.ref() is y

    return trace(run), steps_of(count=3), lambda: place.ref and place.ref() is None


def test_a_weak_reference_to_what_the_call_has_made():
    check(to_what_the_call_has_made, eager="returns-odd")


def with_a_callback(trace):
    net, place = torch.nn.Linear(2, 2), Place()
    place.net, place.ref = net, None

    def run(x):
        place.ref = weakref.ref(place.net, print)
        return x * 2

    return trace(run), steps_of(count=3), lambda: place.ref and place.ref() is place.net


def test_a_weak_reference_with_a_callback():
    check(with_a_callback, eager="returns-odd")


# ---------------------------------------------------------------- sets of objects that give their own hash
class Counted:
    """Counts how often it is asked."""

    def __init__(self):
        self.asked = 0

    def __hash__(self):
        self.asked += 1
        return 5


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def returns_set(*items):
    def make(trace):
        def run(x):
            return x * 2, set(items)

        def look():
            _, found = step(torch.ones(2))
            return len(found), [getattr(item, "asked", 0) for item in items]

        step = trace(run)
        return step, [look] * 4, lambda: None

    return make


def test_a_set_of_one_object_asks_it_as_often():
    check(returns_set(Counted()), eager="reads-odd-key")


def test_a_set_of_several_objects_is_not_made_to_see_its_order():
    check(returns_set(Counted(), Counted()), eager="returns-set-order")


def apart(members):
    """Those with places of their own in a small set: the hash of a name is another one in each process."""
    return list({hash(member) & 7: member for member in members}.values())


def test_a_set_of_members_of_an_enum():
    check(returns_set(*apart(Colour)), hits=3)


# ---------------------------------------------------------------- addresses of tensors
@cases(hits=6)
def address_of_a_parameter(trace):
    net, place = torch.nn.Linear(2, 2), Place()
    place.known = net.weight

    def run(x):
        return net(x).detach(), net.weight._cdata == place.known._cdata

    def other():
        net.weight = torch.nn.Parameter(torch.ones(2, 2))

    def swapped():
        torch.utils.swap_tensors(net.weight, place.known)

    def same():
        place.known = net.weight

    return trace(run), steps_of(other, swapped, same), lambda: None


def address_of_a_result(trace):
    def run(x):
        y = x * 2
        return y._cdata == x._cdata

    return trace(run), steps_of(count=3), lambda: None


def test_the_address_of_a_result():
    check(address_of_a_result, eager="reads-of-tensor")


# ---------------------------------------------------------------- setters of classes made inside
class Doubling:
    @property
    def value(self):
        return self.kept

    @value.setter
    def value(self, value):
        self.kept = value * 2


@cases(hits=5)
def setter_that_a_class_made_inside_inherits(trace):
    def run(x):
        class Mine(Doubling):
            pass

        mine = Mine()
        mine.value = x
        return mine.value

    def tripled(self, value):
        self.kept = value * 3

    usual = Doubling.value

    def turn():
        Doubling.value = Doubling.value.setter(tripled)

    def back():
        Doubling.value = usual

    return trace(run), steps_of(turn, back), lambda: None


@cases(hits=4)
def setter_of_the_second_of_two_bases(trace):
    class Plain:
        pass

    class Tripling(Doubling):
        @Doubling.value.setter
        def value(self, value):
            self.kept = value * 3

    bases = [Plain, Doubling]

    def run(x):
        class Mine(*bases):
            pass

        mine = Mine()
        mine.value = x
        return mine.value

    return trace(run), steps_of(lambda: bases.__setitem__(1, Tripling), count=3), lambda: None


# ---------------------------------------------------------------- rules for vmap
@cases(hits=4)
def rule_for_vmap(trace):
    class Safe(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.clamp(-1, 1)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, *gradients):
            (x,) = ctx.saved_tensors
            return gradients[0] * (x.abs() < 1)

    w, place = torch.full((2,), 0.5, requires_grad=True), Place()
    place.seen = []

    def run(x):
        place.seen = [1]  # shown to no code that is not known
        (gradient,) = torch.autograd.grad(Safe.apply(w * x).sum(), w)
        place.seen = []
        return gradient

    def inside(x):
        return torch.vmap(Safe.apply)(x)

    traced, batched = trace(run), trace(inside)
    steps = [call(torch.full((2,), float(i))) for i in range(5)]
    return traced, [*steps, lambda: batched(torch.ones(2, 2))], lambda: place.seen


@cases.parametrize
def test_weak_references(make, expected):
    check(make, **expected)
