"""Methods and attributes of tensors that let hidden state in or out, in the spelling of a method call."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import X, call, check

READS = {
    "hash": lambda x: hash(x) == hash(x),
    "dunder_hash": lambda x: x.__hash__() == id(x),
    "version": lambda x: x._version,
    "is_leaf": lambda x: x.is_leaf,
    "leaf_of_a_result": lambda x: (x * 2).is_leaf,
    "grad": lambda x: x.grad is None,
    "grad_fn": lambda x: type(x.grad_fn).__name__,
    "grad_fn_of_a_result": lambda x: type((x * 2).grad_fn).__name__,
    "next_functions": lambda x: len(node.next_functions) if (node := (x * 2).grad_fn) else 0,
    "output_nr": lambda x: x.output_nr,
    "base": lambda x: x._base is None,
    "is_view": lambda x: x._is_view(),
    "storage_offset": lambda x: x.storage_offset(),
    "storage_size": lambda x: x.untyped_storage().nbytes(),
    "storage_pointer": lambda x: x.untyped_storage().data_ptr() == x.data_ptr(),
    "is_shared": lambda x: x.is_shared(),
    "is_pinned": lambda x: x.is_pinned(),
    "retains_grad": lambda x: x.retains_grad,
    "element_size": lambda x: (x.element_size(), x.nbytes, x.itemsize),
    "contains": lambda x: 0.5 in x,
    "len_and_iter": lambda x: (len(x), [row * 2 for row in x]),
    "dim_order": lambda x: x.dim_order(),
    "is_contiguous": lambda x: x.is_contiguous(),
    "is_set_to": lambda x: x.is_set_to(x),
    "is_same_size": lambda x: x.is_same_size(x),
    "tolist": lambda x: x.tolist(),
    "dict": lambda x: sorted(vars(x)),
    "dir": lambda x: "add" in dir(x),
    "repr": lambda x: repr(x).split(",")[0],
    "numpy": lambda x: x.detach().numpy().sum().item(),
    "array": lambda x: x.detach().__array__().tolist(),
    "dlpack": lambda x: torch.from_dlpack(x.detach()) * 1,
    "reduce": lambda x: len(x.__reduce_ex__(2)),
    "deepcopy": lambda x: x.detach().__deepcopy__({}),
    "data": lambda x: x.data * 2,
    "data_identity": lambda x: x.data is x,
    "real_and_mt": lambda x: (x.real, x.view(3, 1).mT, x.view(3, 1).H),
    "is_inference": lambda x: x.is_inference(),
    "layout": lambda x: (x.layout, x.device, x.dtype, x.is_sparse, x.is_cuda, x.ndim),
    "type": lambda x: (x.type(), type(x).__name__, isinstance(x, torch.FloatTensor)),
    "type_as": lambda x: x.type(torch.float64).type_as(x),
    "unique": lambda x: x.unique(return_counts=True),
    "norm_split_unflatten": lambda x: (x.norm(), x.split([1, 2]), x.unflatten(0, (3, 1))),
    "new": lambda x: x.new(2).zero_(),
    "apply": lambda x: x.detach().clone().apply_(lambda v: v * 2),
    "map": lambda x: x.detach().clone().map_(x.detach(), lambda a, b: a + b),
    "item_of_each": lambda x: [v.item() for v in x],
    "comparison": lambda x: x.equal(x.clone()),
    "is_complex": lambda x: (x.is_complex(), x.is_floating_point(), x.is_signed(), torch.is_tensor(x)),
    "result_type": lambda x: (torch.result_type(x, 1), torch.can_cast(x.dtype, torch.int32)),
    "storage_resized": lambda x: x.detach().clone().untyped_storage().resize_(0).nbytes(),
    "share_memory": lambda x: x.detach().clone().share_memory_().is_shared(),
    "index_put": lambda x: x.detach().index_put((torch.tensor([0]),), torch.tensor(5.0)),
    "put_number": lambda x: x.detach().clone().index_fill_(0, torch.tensor([0]), 3),
    "module_functions": lambda x: (
        torch.numel(x),
        torch.is_nonzero(x[0]),
        torch.broadcast_shapes((3,), (1,)),
    ),
}

WRITES = {
    "retain_grad": lambda x: (y := x * 2, y.retain_grad(), y.retains_grad)[2],
    "register_hook": lambda x: (y := x * 2, y.register_hook(lambda g: g * 5))[0],
    "post_accumulate": lambda x: (x.register_post_accumulate_grad_hook(lambda t: None), x * 2)[1],
    "requires_grad": lambda x: (x.requires_grad_(not x.requires_grad), x * 2)[1],
    "detach_in_place": lambda x: (y := x * 2, y.detach_())[0],
    "set_data": lambda x: (setattr(x, "data", x.data * 2), x * 2)[1],
    "set_grad": lambda x: (setattr(x, "grad", torch.ones(3)), x * 2)[1],
    "set_attribute": lambda x: (setattr(x, "note", 1), x * 2)[1],
    "zero_grad": lambda x: (setattr(x, "grad", None), x * 2)[1],
    "backward": lambda x: ((x * x).sum().backward(), x * 2)[1],
    "as_subclass": lambda x: type(x.as_subclass(torch.nn.Buffer)).__name__,
}

# What is not replayed, and why.
EAGER = {
    "version": "reads ._version of a tensor",
    "output_nr": "reads .output_nr of a tensor",
    "base": "reads ._base of a tensor",
    "is_view": "calls ._is_view() of a tensor",
    "storage_offset": "calls .storage_offset() of a tensor",
    "storage_size": "calls .untyped_storage() of a tensor",
    "storage_pointer": "calls .untyped_storage() of a tensor",
    "is_shared": "calls .untyped_storage() of a tensor",
    "is_pinned": "calls .is_pinned() of a tensor",
    "retains_grad": "reads .retains_grad of a tensor",
    "is_set_to": "calls .is_set_to() of a tensor",
    "dict": "reads .__dict__ of a tensor",
    "dir": "reads .__dict__ of a tensor",
    "repr": "makes a torch._C._DisableFuncTorch, which lazytrace cannot see into",
    "dlpack": "calls .is_pinned() of a tensor",
    "reduce": "hands .__getstate__() to C code",
    "deepcopy": "calls id()",
    "apply": "calls .apply_() of a tensor",
    "map": "calls .map_() of a tensor",
    "storage_resized": "calls .untyped_storage() of a tensor",
    "share_memory": "calls .untyped_storage() of a tensor",
    "retain_grad": "reads .retains_grad of a tensor",
    "post_accumulate": "reads ._post_accumulate_grad_hooks of a tensor",
    "set_attribute": "sets .note of a Tensor",
    "as_subclass": "calls .as_subclass() of a tensor",
}


def expected(name):
    return {"eager": EAGER[name]} if name in EAGER else {"hits": 2}


def fresh(kind):
    if kind == "view":
        return torch.tensor([9.0, -1.0, 0.5, 2.0], requires_grad=True)[1:]
    if kind == "leaf":
        return X(grad=True)
    x = X()
    if kind == "written":
        x.mul_(1)
    return x


@pytest.mark.parametrize("name", READS)
def test_reads(name):
    def make(trace):
        kinds = ["plain", "plain", "written", "leaf", "leaf", "view", "view", "plain"]
        return trace(READS[name]), [call(fresh(k)) for k in kinds]

    # Which tensor it is says what its hash is.
    which = {"recordings": 8} if name in ("hash", "dunder_hash") else expected(name)
    check(make, **which)


@pytest.mark.parametrize("name", READS)
def test_reads_of_state(name):
    def make(trace):
        o = {"w": fresh("plain")}
        kinds = ["plain", "written", "leaf", "leaf", "view", "plain"]
        steps = []
        for k in kinds:
            steps += [lambda k=k: o.update(w=fresh(k)), call(), call()]
        return trace(lambda: READS[name](o["w"])), steps, lambda: o

    # that a tensor of state is a leaf is guarded, that it is none is not
    of_state = {"hits": 5, "eager": "reads .is_leaf of a tensor"} if name == "is_leaf" else expected(name)
    check(make, **of_state)


@pytest.mark.parametrize("name", WRITES)
def test_writes(name):
    def make(trace):
        x = fresh("leaf")
        return trace(WRITES[name]), [call(x), call(x), call(x), call(fresh("leaf"))], lambda: (x, x.grad)

    check(make, **expected(name))


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_state(name):
    def make(trace):
        w = fresh("leaf")
        return trace(lambda x: (WRITES[name](w), x)), [call(X())] * 3, lambda: (w, w.grad, sorted(vars(w)))

    # The second call adds to a gradient that the first has made: only the third is a hit.
    # So it is where each call finds the other flag, or an attribute that the first has put there.
    seldom = name in ("backward", "requires_grad", "set_attribute")
    check(make, **({"hits": 1} if seldom else expected(name)))


# ---------------------------------------------------------------- attributes that hide a method
def hiding():
    hidden = X()
    hidden.sum = lambda: torch.tensor(99.0)
    return hidden


def test_method_hidden_on_an_argument():
    def make(trace):
        plain, hidden = X(), hiding()
        return trace(lambda x: x.sum()), [call(t) for t in (plain, plain, hidden, hidden, plain)]

    check(make, hits=2)


def test_method_hidden_on_state():
    def make(trace):
        state = {"w": X()}
        fn = trace(lambda x: x * state["w"].sum())
        return fn, [*[call(X())] * 3, lambda: state.update(w=hiding()), *[call(X())] * 3]

    check(make, hits=2)


def test_method_hidden_between_calls():
    def make(trace):
        state = X()

        def hide():
            state.sum = lambda: torch.tensor(99.0)

        def show():
            del state.sum

        twice = [call(X())] * 2
        return trace(lambda x: x * state.sum()), [*twice, hide, *twice, show, *twice]

    check(make, hits=2)


def test_attribute_beside_a_method():
    def make(trace):
        state = X()
        state.k = 2.0

        def hide():
            state.sum = lambda: torch.tensor(99.0)

        return trace(lambda x: x * state.sum() * state.k), [*[call(X())] * 2, hide, *[call(X())] * 2]

    check(make, hits=1)
