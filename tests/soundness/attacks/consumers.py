"""What is done with the source: expressions over `S`, and statements that bind `v`."""

from __future__ import annotations

_PLAIN = """
S
bool(S)
not S
(1 if S else 2)
len(S)
S[0]
S[1]
S[-1]
S['a']
S['b']
S['zz']
S[:2]
S[::-1]
S.a
S.b
S.v
S.d
S.z
S.q
S()
S(2)
S(x)
S(x).sum()
S(S)
S('a')
S(0)
next(S)
next(S, None)
list(map(S.setdefault, 'ab'))
list(map(S.pop, 'a'))
list(map(S.update, [{'b': 2}]))
list(map(S.__missing__, 'q'))
S.__missing__('q')
S.__init__(a=5)
sorted('ab', key=S.setdefault)
functools.reduce(operator.mul, S)
list(map(operator.add, S, S))
list(map(operator.truediv, S, S))
S + S
S / (S - S)
math.prod(S)
S[int]
S.encode('ascii', 'replace')
max(map(repr, S))
min(map(str, S))
str(type(S))
repr(KeyError(S))
next(iter(S))
next(reversed(S))
list(S)
tuple(S)
set(S)
frozenset(S)
dict(S)
dict(zip('abc', S))
dict(**S)
[*S]
{*S}
{**S}
(*S, 1)
sum(S)
sum(S, [])
sum(len(q) for q in S)
sum(map(len, S))
sum(1 for _ in S)
sum(q[0] for q in S)
sum(map(bool, S))
sum(map(int, S))
sum(map(float, S))
len(list(map(str, S)))
min(S)
max(S)
max(S, default=0)
min(S, key=lambda q: str(q))
max(S, key=len)
max(S, key=S.get)
any(S)
all(S)
any(map(bool, S))
all(q for q in S)
any(q == e0 for q in S)
any(q is e0 for q in S)
sorted(S)
sorted(S, reverse=True)
sorted(S, key=str)
sorted(S, key=repr)
sorted(S, key=len)
sorted(S, key=lambda q: q[1])
sorted(S, key=id) == sorted(S, key=id)
list(reversed(S))
list(enumerate(S))
list(zip(S, S))
list(zip(*S))
list(zip(S, [1, 2, 3]))
list(map(str, S))
list(map(repr, S))
list(map(len, S))
list(map(lambda q: q, S))
list(map(operator.itemgetter(0), S))
list(map(operator.attrgetter('v'), S))
list(filter(None, S))
list(filter(lambda q: q, S))
list(iter(S))
list(S.keys())
list(S.values())
list(S.items())
S.keys()
S.values()
S.items()
S.get('a')
S.get('zz', 3)
S.get(e0)
S.pop('zz', 3)
S.copy()
S.setdefault('a', 3)
S | {'z': 3}
S | S
S & S
S - S
S ^ S
S + S
S * 2
2 * S
S + 1
1 + S
S - 1
1 - S
S * 1.5
1.5 * S
S / 2
S // 2
S % 2
S ** 2
S @ 2
divmod(S, 2)
pow(S, 2)
-S
+S
~S
abs(S)
S < S
S <= 1
S > 0
S >= e1
S == S
S == 1
S == e0
S != e0
S == e1
e0 == S
S != e3
S is None
S is e0
S is not e1
S == [1, 2, 3]
S == [e0, e1, e2]
S == (e0, e1, e2)
S == {'a': e0, 'b': e1, 'c': e2}
[e0, e1, e2] == S
S != [e0, e1, e2]
S < [e0, e3]
S == copy.copy(S)
[S] == [e0]
(S, 1) == (e0, 1)
{'k': S} == {'k': e0}
e0 in S
e1 in S
e3 in S
1 in S
'a' in S
'zz' in S
5 not in S
S in [e0, e1]
S in (e1, e2)
S in {e0: 1}
S in {e0, e1}
S in ([1, 2], [5, 6])
S in [1, 2.0, 'a', None]
S in (e0, [e0], (e0, e1))
[e0, e1].count(S)
[e3, e0, e1].index(S)
S.count(e0)
S.count(1)
S.index(e1)
S.index(e0, 0)
operator.contains(S, e0)
operator.countOf(S, e0)
operator.indexOf(S, e1)
operator.length_hint(S)
operator.index(S)
operator.eq(S, e0)
operator.ne(S, e0)
operator.lt(S, e1)
operator.add(S, 1)
operator.mul(S, 2)
operator.getitem(S, 0)
operator.truth(S)
operator.not_(S)
operator.is_(S, e0)
operator.concat(S, S)
operator.neg(S)
operator.itemgetter(0)(S)
operator.itemgetter('a')(S)
operator.itemgetter(0, 1)(S)
operator.attrgetter('a')(S)
operator.attrgetter('v')(S)
operator.methodcaller('keys')(S)
operator.methodcaller('__len__')(S)
operator.call(S, 2)
int(S)
float(S)
complex(S)
bytes(S)
bytearray(S)
str(S)
repr(S)
ascii(S)
format(S)
format(S, '>9')
f'{S}'
f'{S!r}'
f'{S:>9}'
'%s' % (S,)
'%r' % (S,)
'%d' % S
'%.2f' % S
'{}'.format(S)
'{0.v}'.format(S)
'{0[0]}'.format(S)
'{0[a]}'.format(S)
'{a}'.format(**S)
'%(a)s' % S
'{a}'.format_map(S)
','.join(S)
','.join(map(str, S))
','.join(sorted(S))
'a'.join(S.keys())
round(S)
round(S, 1)
math.floor(S)
math.ceil(S)
math.trunc(S)
math.copysign(1, S)
math.sqrt(abs(S))
math.isnan(S)
math.fsum(S)
math.prod(S)
math.isclose(S, 1)
math.gcd(S, 4)
math.hypot(*S)
math.dist(S, S)
math.comb(5, S)
statistics.mean(S)
statistics.median(S)
hash(S)
hash(S) == hash(e0)
hash(tuple(S))
id(S) == id(e0)
callable(S)
type(S)
type(S).__name__
type(S) is type(e0)
S.__class__.__name__
isinstance(S, (int, list))
isinstance(S, dict)
isinstance(S, type(e0))
isinstance(e0, S)
isinstance(3, S)
issubclass(int, S)
issubclass(type(S), (int, list))
isinstance(S, collections.abc.Iterable)
isinstance(S, collections.abc.Sized)
isinstance(S, collections.abc.Callable)
isinstance(S, collections.abc.Hashable)
isinstance(S, collections.abc.Mapping)
isinstance(S, numbers.Number)
isinstance(S, os.PathLike)
isinstance(S, typing.SupportsIndex)
hasattr(S, 'a')
hasattr(S, 'd')
hasattr(S, 'v')
hasattr(S, '__len__')
hasattr(S, '__iter__')
hasattr(S, '__call__')
getattr(S, 'a', 3)
getattr(S, 'd', 3)
getattr(S, 'v', 3)
getattr(S, '__len__', None) is None
getattr(S, '__wrapped__', 3)
vars(S)
len(vars(S))
sorted(vars(S))
list(vars(S).values())
S.__dict__
S.__dict__.get('a')
sorted(S.__dict__.items())
dir(S)
'd' in dir(S)
S.__len__()
S.__iter__()
S.__contains__(e0)
S.__eq__(e0)
S.__getitem__(0)
S.__call__(2)
S.__str__()
S.__bool__()
S.__doc__
S.__name__
S.__defaults__
S.__kwdefaults__
S.__closure__[0].cell_contents
S.__code__.co_consts
S.__globals__['GLOBAL']
S.__self__.v
S.__self__
S.__func__
S.__func__.__name__
S.__wrapped__(2)
S.__mro__
S.__bases__
S.mro()
S.func
S.args
S.keywords
S.maps
S.default_factory
S.contents
S.value
S.name
S.label
S.real
S.stop
S.start
S.numerator
S.dtype
S.shape
S.size
S.ndim
S.tolist()
S.item()
S.sum()
S.mean()
S.data
S.grad
S.requires_grad
S.is_leaf
S.days
S.year
S.isoformat()
S.upper()
S.split('a')
S.startswith('a')
S.encode()
S.a.v
S.a[0]
S['a'][0]
S['a']['k']
S[0][0]
S[0].v
S[0].a
S[0](2)
S['a'](2)
S.a(2)
S[0]()
S.a()
S[0](x)
len(S[0])
len(S.a)
len(S['a'])
str(S[0])
str(S.a)
S[0] == S[1]
S[0] is S[1]
S.a == S.b
S.a is S.b
S.a is not S.b
S['a'] == S['b']
S['a'] is S['b']
S['a'] != S['b']
S[0] in S[1:]
len({id(q) for q in S})
len({*S})
len(set(S))
len(set(S.values()))
len(dict.fromkeys(S))
list(dict.fromkeys(S))
len(S | {e0})
len(S & {e0})
len(S - {e0})
len({e0} | S)
{e0, e1} <= S
S <= {e0, e1, e2, e3}
S.issubset([e0, e1])
S.union([e1])
S.isdisjoint([e1])
len(set().union(S))
len(set().union(*S))
len(set([e0]).intersection(S))
len({e0, e3}.difference(S))
len({e0}.symmetric_difference(S))
{e0}.issubset(S)
{e0}.issuperset(S)
{e0, e1, e2}.isdisjoint(S)
len(frozenset().union(S))
list.__len__(S)
dict.__len__(S)
dict.get(S, 'a')
dict.items(S)
list.index(S, e1)
tuple.__eq__(S, (e0, e1, e2))
set.__contains__(S, e0)
type(S).__len__(S)
type(S).__iter__(S)
type(S).__eq__(S, e0)
list(itertools.chain(S))
list(itertools.chain(*S))
list(itertools.chain.from_iterable(S))
list(itertools.islice(S, 2))
list(itertools.accumulate(S))
list(itertools.accumulate(S, max))
list(itertools.combinations(S, 2))
list(itertools.permutations(S, 2))
list(itertools.product(S, S))
list(itertools.repeat(S, 2))
list(itertools.starmap(lambda *a: len(a), S))
list(itertools.starmap(operator.eq, S))
list(itertools.takewhile(bool, S))
list(itertools.dropwhile(lambda q: not q, S))
list(itertools.filterfalse(None, S))
list(itertools.compress('abc', S))
list(itertools.compress(S, [1, 0, 1]))
list(itertools.zip_longest(S, [1]))
list(itertools.pairwise(S))
[k for k, g in itertools.groupby(S)]
[k for k, g in itertools.groupby([1, 2], key=S)]
list(itertools.tee(S)[0])
next(itertools.cycle(S))
functools.reduce(lambda a, b: b, S)
functools.reduce(operator.add, S)
functools.reduce(operator.or_, S)
functools.reduce(S, [1, 2])
functools.reduce(lambda a, b: a + len(b), S, 0)
functools.partial(S)()
functools.partial(S, 2)()
functools.partial(len, S)()
functools.partial(S, x)()
sorted([3, 1, 2], key=S)
sorted([3, 1, 2], key=functools.cmp_to_key(S))
sorted('cab', key=S.__contains__)
min([3, 1, 2], key=S)
max('abc', key=S)
list(map(S, [1, 2]))
list(map(S, 'abc'))
sum(map(S, [x, x]))
list(filter(S, [0, 1, 2]))
list(filter(S.get, 'abz'))
list(map(S.get, 'abz'))
list(map(S.__getitem__, [0, 1]))
list(map(S.count, [1, 2]))
[S(q) for q in (1, 2)]
next(iter(S, 0))
next(iter(lambda: len(S), 99))
list(zip(map(str, S), S))
any(k == 'a' for k in S)
any(v is e0 for v in S.values())
any(S.values())
all(S.values())
max(S.values())
min(S.values())
max(S.items())
sum(S.values())
sum(map(len, S.values()))
sum(len(v) for v in S.values())
sorted(S.values())
sorted(S.items())
sorted(S.items(), key=lambda p: p[1])
sorted(S, key=S.get)
sorted(S, key=S.__getitem__)
max(S, key=lambda k: S[k])
set(S.values())
tuple(S.values())
dict(S.items())
{v: k for k, v in S.items()}
{k: len(v) for k, v in S.items()}
[v for v in S.values() if v]
list(map(len, S.values()))
list(map(tuple, S.values()))
str(S.values())
str(S.keys())
repr(S.items())
len(S.values())
e0 in S.values()
('a', e0) in S.items()
'a' in S.keys()
S.keys() == {'a', 'b', 'c'}
S.keys() & {'a', 'z'}
S.keys() | {'z'}
S.keys() - {'a'}
S.items() & {('a', e0)}
S.keys() >= {'a'}
S.items() == {'a': e0, 'b': e1, 'c': e2}.items()
S.keys().isdisjoint({'z'})
{'a'}.union(S.keys())
set().union(*S.values())
max(*S.values())
operator.add(*iter(S.values()))
sorted(*iter(S))
getattr(*iter([S, 'v']))
hasattr(*{0: S, 1: 'v'}.values())
getattr(*map(lambda q: q, [S, 'v']))
S.get(*'a')
S.get(*iter('a'))
functools.partial(max, *S.values())()
list(map(functools.partial(getattr, S), ['v']))
(lambda d: [d.update(S), d])({})[1]
collections.defaultdict(int, S)
collections.OrderedDict(S)
types.MethodType(S, 2).__name__
types.MethodType(S, 2).__doc__
hasattr(types.MethodType(S, 2), 'v')
vars(types.MethodType(S, 2))
staticmethod(S).__name__
classmethod(S).__doc__
property(S).__doc__
functools.wraps(S)(lambda: 0).__name__
functools.wraps(S)(lambda: 0).__dict__
sum(S.values(), [])
dict(zip(S.values(), S.keys()))
next(iter(S.values()))
next(iter(S.items()))[1]
next(reversed(S.values()))
dict(S, z=3)
dict([*S])
dict.fromkeys(S, 1)
collections.Counter(S)
collections.Counter(S).most_common(1)
collections.OrderedDict(S)
collections.deque(S, 2)
collections.deque(S)[0]
collections.ChainMap({}, S)['a']
types.SimpleNamespace(**S).a
types.MappingProxyType(S)['a']
list(collections.UserList(S))
S.most_common(1)
S.elements()
S.total()
S.first
copy.copy(S)
copy.deepcopy(S)
copy.copy(S) == S
len(copy.copy(S))
pickle.dumps(S) == pickle.dumps(e0)
len(pickle.dumps(S))
json.dumps(S)
json.dumps(S, sort_keys=True)
json.dumps({'k': S})
json.dumps(list(S))
pprint.pformat(S)
reprlib.repr(S)
textwrap.shorten(S, 20)
string.Formatter().format('{}', S)
S.substitute(a=1)
bisect.bisect(S, 2)
bisect.bisect_left(S, e1)
bisect.bisect(S, 2, key=lambda q: q)
bisect.bisect([1, 2, 3], 2, key=S)
heapq.nlargest(2, S)
heapq.nsmallest(1, S, key=str)
list(heapq.merge(S, S))
struct.pack('i', S)
struct.pack('3d', *S)
array.array('d', S)
np.array(S)
np.array(S).sum()
np.asarray(S).dtype.name
np.sum(S)
np.add(S, 1)
np.concatenate([S, S])
float(np.max(S))
random.choice(S)
random.sample(S, 2)
random.choices('ab', S)
S.random()
S.group(1)
S.groups()
S.match('aaa').group()
re.sub('a', S, 'banana')
re.match(S, 'aaa')
os.fspath(S)
os.path.join(S, 'b')
pathlib.PurePosixPath(S)
time.gmtime(S).tm_year
datetime.timedelta(S)
fractions.Fraction(S)
decimal.Decimal(S)
inspect.signature(S)
len(inspect.signature(S).parameters)
inspect.isfunction(S)
inspect.unwrap(S)
typing.get_type_hints(S)
dataclasses.asdict(S)
dataclasses.astuple(S)
dataclasses.replace(S, a=3)
len(dataclasses.fields(S))
dataclasses.is_dataclass(S)
S._asdict()
S._replace(a=3)
S._fields
enum.Enum('Z', S)
range(S)
list(range(S))
slice(S).stop
[1, 2, 3, 4][S]
[1, 2, 3, 4][:S]
'abcd'[S]
'ab' * S
[1] * S
{1: 2, e0: 3}[S]
{e0: 5, e1: 6}.get(S)
{S: 1}[e0]
{S: 1, e0: 2}
{S, e0, e1}
(e0, e1, S).index(S)
(lambda *a: len(a))(*S)
(lambda *a: a[0])(*S)
(lambda *a, **k: len(k))(**S)
(lambda a=0, **k: a)(**S)
max(*S)
print_to(S)
(yielded(S))
[q for p in S for q in p]
[a for a, *b in S]
{q: i for i, q in enumerate(S)}
(S and 3)
(S or 3)
(None if S is None else 5)
S and S[0]
int.from_bytes(S, 'big')
int(S, 16)
ord(S)
chr(S)
bin(S)
hex(S)
divmod(5, S)
5 // S
2 ** S
1 if 0 < S < 5 else 2
1 << S
5 - S
5 > S
5 == S
[5] + S
(5,) + S
'b' + S
b'b' + S
'abc'.startswith(S)
'abc'.find(S)
'a-b'.split(S)
'abc'.replace('a', S)
'abc'.strip(S)
'abc'.center(S)
'abc'.translate(S)
math.sin(S)
math.log2(S)
math.pow(S, 2)
cmath.phase(S)
contextlib.nullcontext(S).enter_result
S.tell()
S.readline()
S.read(1)
S.get_nowait()
S.qsize()
S.empty()
S.is_set()
S.isEnabledFor(10)
S.getEffectiveLevel()
S.prec
S.divide(1, 3)
S.fetchone()
S.parameters
S.co_code
S.co_varnames
S.num_leaves
S.get_scale()
S.param_groups[0]['lr']
S.initial_seed()
S.get_state()
S['GLOBAL']
S['LT_X']
S.lt_attack
S.floor(2.5)
S.get()
S.get(None)
"""

_TORCH = """
x * S
S * x
x + S
S + x
x - S
x / S
x == S
x > S
S < x
S @ x
x @ S
x ** S
x[S]
x[:S]
x[S, ...]
x[list(S)]
x.view(S)
x.reshape(S)
x.expand(S)
x.sum(S)
x.sum(dim=S)
x.to(S)
x.type(S)
x.add(S)
x.add(1, alpha=S)
x.clamp(S)
x.clamp(min=S)
x.roll(S)
x.repeat(S)
x.split(S)
x.chunk(S)
x.flip(S)
x.unsqueeze(S)
x.new_zeros(S)
x.new_tensor(S)
x.new_full((2,), S)
x.fill_(S)
x.masked_fill(x > 1, S)
x.index_select(0, S)
x.clone().copy_(S)
x.apply_(S)
x.norm(S)
x.permute(S)
torch.tensor(S)
torch.tensor(S, dtype=torch.float64)
torch.tensor(list(S))
torch.tensor([S, 1])
torch.as_tensor(S)
torch.asarray(S)
torch.from_numpy(S)
torch.full((2,), S)
torch.zeros(S)
torch.zeros(*S)
torch.ones(2, dtype=S)
torch.ones(2, device=S)
torch.empty(S).shape
torch.arange(S)
torch.arange(*S)
torch.linspace(0, 1, S)
torch.stack(S)
torch.stack(list(S))
torch.stack([*S])
torch.stack(tuple(S.values()))
torch.cat(S)
torch.cat(list(S))
torch.cat([x, *S])
torch.where(x > 1, S, x)
torch.roll(x, S)
torch.add(x, S)
torch.mul(S, x)
torch.max(x, S)
torch.eq(x, S)
torch.equal(S, S)
torch.allclose(S, S)
torch.numel(S)
torch.is_tensor(S)
torch.isnan(S)
torch.sin(S)
torch.sum(S)
torch.sum(x, S)
torch.clamp(x, S, 3)
torch.split(x, S)
torch.reshape(x, S)
torch.broadcast_to(x, S)
torch.broadcast_shapes(S, (1,))
torch.Size(S)
torch.einsum('i,i->', x, S)
torch.dot(x, S)
torch.nn.functional.pad(x, S)
torch.nn.functional.one_hot(S)
torch.nn.functional.dropout(x, S)
torch.nn.functional.linear(x, S)
torch.nn.functional.relu(S)
torch.nn.functional.softmax(x, S)
torch.nn.functional.leaky_relu(x, S)
torch.nn.functional.interpolate(x[None, None], S)
torch.nn.functional.normalize(x, S, 0)
torch.rand(3, generator=S)
torch.randint(S, (2,), generator=torch.Generator().manual_seed(1))
torch.result_type(x, S)
torch.promote_types(S, torch.float16)
torch.finfo(S).max
torch.can_cast(S, torch.int64)
torch.get_device(S)
torch.manual_seed(S)
torch.vmap(S)(x)
torch.vmap(lambda q: q * S)(x)
torch.func.grad(lambda q: (q * S).sum())(x)
torch.func.vjp(S, x)[0]
torch.func.jvp(S, (x,), (x,))[1]
torch.func.functional_call(S, {}, x)
torch.no_grad()(S)(x)
torch.utils.checkpoint.checkpoint(S, x, use_reentrant=False)
torch.nn.Sequential(*S)(x)
torch.nn.ParameterList(S)
torch.nn.init.constant_(torch.empty(2), S)
torch.set_grad_enabled(S) and None
torch.autocast('cpu', S)
torch.jit.annotate(int, S)
torch.overrides.has_torch_function((S,))
torch.overrides.handle_torch_function(len, (x,), S)
S.to(torch.float64)
S.sin()
S.add(x)
S.numel()
S.dim()
S.view(-1)
S.clone()
S.detach()
S.stride()
S.storage_offset()
S.data_ptr() == S.data_ptr()
S._version
S.type()
S.is_floating_point()
S.get_device()
S.T
S.weight
S.weight.sum()
S.bias
S.p
S.training
S.momentum
S.eps
S.in_features
S.parameters()
sum(p.numel() for p in S.parameters())
len(list(S.parameters()))
[n for n, _ in S.named_parameters()]
[n for n, _ in S.named_buffers()]
len(list(S.children()))
len(list(S.modules()))
len(S.state_dict())
list(S.state_dict().values())
S.extra_repr()
S.forward(x)
S.append
S._modules
S._buffers
S._forward_hooks
S.get_parameter('w')
[m(x) for m in S]
[m(x) for m in S.values()]
S[0].weight
S['a'].weight
S.a.weight
S[0].training
pytree.tree_map(lambda q: q, S)
pytree.tree_map(len, S)
pytree.tree_map(S, [1, 2])
pytree.tree_map(S, [x])
pytree.tree_leaves(S)
sum(pytree.tree_leaves(S))
len(pytree.tree_leaves(S))
pytree.tree_flatten(S)[0]
pytree.tree_structure(S)
pytree.tree_structure(S) == pytree.tree_structure(e0)
pytree.tree_unflatten([x, x], S)
pytree.tree_all(bool, S)
pytree.tree_map_only(int, lambda q: q + 1, S)
pytree.tree_any(lambda q: q is e0, S)
pytree.tree_is_leaf(S)
S.unscale_(None)
S.scale(x)
S.is_enabled()
S.zero_grad()
x.requires_grad_().register_hook(S)
torch.autograd.grad((w1 * S).sum(), w1)[0]
torch.cond(torch.tensor(True), S, S, (x,))
torch.compile
torch.ops.aten.add(x, S)
torch.ops.aten.cat(S)
"""

STATEMENTS = (
    "a, b, c = S\nv = (a, b)",
    "a, *b = S\nv = b",
    "[a, b] = S\nv = a",
    "(a, b), *c = S\nv = a",
    "v = 0\nfor q in S: v += 1",
    "v = []\nfor q in S: v.append(q)",
    "v = 0\nfor q in S: v = v + q",
    "v = ''\nfor q in S: v += str(q)",
    "v = []\nfor k, q in S.items(): v += [k, q]",
    "v = 0\nfor q in S.values():\n    if q: v += 1",
    "v = 0\nfor i, q in enumerate(S):\n    if q == e1: v = i",
    "v = 0\nfor i, q in enumerate(S):\n    if q is e1: v += i\n    else: v += 5",
    "v = 0\nfor p, q in zip(S, S): v += p == q",
    "v = 0\nwhile S:\n    v += 1\n    break",
    "with S as v: pass",
    "v = 0\nwith S: v = 1 / 0",
    "with contextlib.suppress(S):\n    v = 5\n    {}[0]\nv = 3",
    "try: raise KeyError(1)\nexcept S: v = 1\nexcept Exception: v = 2",
    "try: raise KeyError(1)\nexcept (S, ValueError): v = 1\nexcept Exception: v = 2",
    "try: raise S\nexcept KeyError as q: v = q.args\nexcept Exception: v = 2",
    "try: raise S\nexcept BaseException as q: v = str(q)",
    "try: raise S\nexcept BaseException as q: v = getattr(q, '__notes__', None)",
    "try: raise S\nexcept* KeyError as q: v = 1\nexcept* ValueError as q: v = 2",
    "try: v = S[5]\nexcept Exception as q: v = type(q).__name__",
    "try: v = S.zz\nexcept Exception as q: v = str(q)",
    "try: v = S()\nexcept TypeError as q: v = str(q)",
    "try: v = len(S)\nexcept TypeError as q: v = q.args[0]",
    "try: v = S + 1\nexcept TypeError as q: v = f'{q}'",
    "try: raise ValueError(1) from S\nexcept (ValueError, TypeError) as q: v = str(q.__cause__)",
    "class J: z = S\nv = J.__name__",
    "try: v = len(S)\nexcept TypeError: v = 77",
    "try: v = bool(S)\nexcept TypeError: v = 77",
    "try: v = [*S]\nexcept TypeError: v = 77",
    "try: v = hash(S) == 5\nexcept TypeError: v = 77",
    "try: v = S < e1\nexcept TypeError: v = 77",
    "try: v = S + 1\nexcept TypeError: v = 77",
    "try: v = 1 + S\nexcept TypeError: v = 77",
    "try: v = e0 in S\nexcept TypeError: v = 77",
    "try: v = float(S)\nexcept (TypeError, ValueError): v = 77",
    "try: v = [5, 6, 7][S]\nexcept (TypeError, IndexError): v = 77",
    "try: v = S['a']\nexcept (TypeError, KeyError, IndexError): v = 77",
    "try: v = S(2)\nexcept TypeError: v = 77",
    "assert S\nv = 1",
    "assert S is not None, S\nv = 1",
    "match S:\n    case [a, b]: v = 1\n    case [a, b, c]: v = 2\n    case _: v = 3",
    "match S:\n    case {'a': a}: v = a\n    case {'d': a}: v = 2\n    case _: v = 3",
    "match S:\n    case {'a': a, **r}: v = len(r)\n    case _: v = 3",
    "match S:\n    case 1: v = 1\n    case 'a': v = 2\n    case None: v = 3\n    case _: v = 4",
    "match S:\n    case int(): v = 1\n    case str(): v = 2\n    case list(): v = 3\n    case _: v = 4",
    "match S:\n    case object(a=1): v = 1\n    case object(a=q): v = 2\n    case object(v=1): v = 3\n    case _: v = 4",
    "match S:\n    case [1, *r]: v = r\n    case [*r, 3]: v = r\n    case _: v = 4",
    "match S:\n    case True: v = 1\n    case 1 | 1.0: v = 2\n    case _: v = 4",
    "q = S\nq += 1\nv = q",
    "q = [1]\nq += S\nv = q",
    "q = [1]\nq.extend(S)\nv = q",
    "q = [1]\nq[:0] = S\nv = q",
    "q = {}\nq.update(S)\nv = q",
    "q = {}\nq |= S\nv = q",
    "q = {1}\nq |= S\nv = len(q)",
    "q = {1}\nq.update(S)\nv = len(q)",
    "q = {e0, e3}\nq -= S\nv = len(q)",
    "q = {e0, e3}\nq.intersection_update(S)\nv = len(q)",
    "q = {e0: 1}\nq[S] = 2\nv = len(q)",
    "q = collections.defaultdict(S)\nv = q['k']",
    "q = collections.defaultdict(list)\nfor i, r in enumerate(S): q[r].append(i)\nv = list(q.values())",
    "q = [S, e1]\nq.sort()\nv = q[0] is e1",
    "q = [*S]\nq.sort()\nv = q",
    "q = [*S]\nq.remove(e1)\nv = len(q)",
    "q = [3, 1, 2]\nq.sort(key=S)\nv = q",
    "q = collections.deque([5], maxlen=2)\nq.extend(S)\nv = list(q)",
    "q = collections.Counter()\nq.update(S)\nv = len(q)",
    "q = [*S]\nheapq.heapify(q)\nv = q[0]",
    "q = [*S]\nbisect.insort(q, e1)\nv = len(q)",
    "def g():\n    yield from S\nv = list(g())",
    "def g():\n    for q in S: yield q\nv = sum(1 for _ in g())",
    "def g(a, b=S): return b\nv = g(1)",
    "def g(*a): return len(a)\nv = g(*S)",
    "def g(**k): return sorted(k)\nv = g(**S)",
    "g = lambda: S\nv = g()",
    "class K: z = S\nv = K.z",
    "class K(S): pass\nv = K.__name__",
    "k = NS(z=S)\nv = k.z",
    "it = iter(S)\nnext(it)\nv = list(it)",
    "it = iter(S)\nv = (next(it), next(it))",
    "it = map(lambda a, b: (a, b), S, S)\nv = next(it)",
    "v = next(zip(S, S))",
    "v = 1\nif S: v = 2\nelif S is None: v = 3",
    "v = 1\nif not S and S is not None: v = 2",
    "v = 1\nif S == e0: v = 2",
    "v = 1\nif isinstance(S, (list, tuple)): v = 2\nelif isinstance(S, dict): v = 3",
    "v = 5\ndel v\nv = S",
    "x = x.clone()\nx[0] = S\nv = x",
    "x = x.clone()\nx[S] = 5\nv = x",
    "x = x.clone()\nx += S\nv = x",
    "x = x.clone()\nx[:2] = torch.tensor(S)\nv = x",
    "with torch.set_grad_enabled(S): v = w1 * 2",
    "with torch.no_grad(): v = S(w1)",
    "with torch.autocast('cpu', S): v = torch.outer(x, x) @ torch.ones(3, 2)",
    "m = torch.nn.Linear(3, 2)\nm.z = S\nv = m.z",
    "k = torch.nn.ModuleList(S)\nv = len(k)",
    "with contextlib.ExitStack() as q: v = q.enter_context(S)",
)  # fmt: skip

CONSUMERS = tuple(line for line in (_PLAIN + _TORCH).split("\n") if line) + STATEMENTS
