"""What is drawn from, and how: pools, entries, ways to a place, what is done with an entry, and what changes.

The names that the programs in `drawing` give these: the pool `p`, the entries that were drawn `es` and the last place
`i`, the input `x` and the result `y`, the net with its optimizer `net` and `opt`, memory that entries show `base`, what
makes an entry `entry()`, the random numbers of the caller `r`, and `S`, the state that the step keeps.
"""

from __future__ import annotations

# What an entry holds.
LEAVES = (
    *["torch.randn(4)", "r.random()", "r.randrange(10)"] * 4, "torch.randn(3)", "torch.randn(4, dtype=torch.float64)", "torch.arange(4)", "torch.randn(())",
    "torch.randn(4, requires_grad=True)", "base[r.randrange(30):][:4]", "base[:4]", "SAME", "net[0].bias.detach()", "net[0].bias", "net[0].weight.data[r.randrange(4)]",
    "net[0].bias.grad", "getattr(net[1], 'running_mean', None)", "next((v for s in opt.state.values() for v in s.values() if torch.is_tensor(v) and v.dim()), torch.randn(4))",
    "S.total", "r.choice([0.0, -0.0, 1.0, 1, True, -2.5, math.inf])", "math.nan", "r.choice([0, -3, 2**40, 2**63 - 1, 2**63, -2**63])", "r.random() < 0.5", "r.choice([None, 0.5])",
    "r.choice('abcd')", "r.choice(['', 'a', b'a'])", "np.float64(r.random())", "np.float32(r.random())", "np.int64(r.randrange(9))", "np.array([r.random()] * 4)", "np.arange(4)", "r.choice([1, 2.0, 'a', None, SAME])",
    "complex(r.random(), 1)", "torch.Size([r.randrange(3), 2])", "slice(r.randrange(3), 4)", "torch.float32", "nn.Parameter(torch.ones(4))", "torch.ones(()).expand(4)", "torch.randn(8)[::2]",
)  # fmt: skip
# How its leaves stand in it: `A`, `B` and `C` are made anew for each entry.
SHAPES = (
    *["{A}"] * 5, *["({A}, {B})"] * 2, "({A}, {B}, {C})", "Row({A}, {B})", "({A}, ({B}, {C}))", "[{A}, {B}]", "{{'a': {A}, 'b': {B}}}", "Made({A}, {B})", "({A},)", "()", "[{A}, [{B}]]",
    "NS(a={A}, b={B})", "r.choice([{A}, ({A}, {B})])", "Slots({A}, {B})", "frozenset([1, r.randrange(3)])", "(ONE, {A})", "({A}, [{B}])", "collections.OrderedDict(a={A}, b={B})", "(lambda v: (v, v))({A})",
)  # fmt: skip
# name: what makes a pool of the entries `made`
POOLS: dict[str, str] = {
    "list": "list(made)", "list again": "[*made]", "tuple": "tuple(made)", "deque": "collections.deque(made)", "full deque": "collections.deque(made, maxlen=len(made))",
    "long deque": "collections.deque(made, maxlen=len(made) + 4)", "dict": "dict(enumerate(made))", "ordered dict": "collections.OrderedDict(enumerate(made))", "list of lists": "[[one, k] for k, one in enumerate(made)]",
    "one list in another": "[made, made]", "named tuple": "collections.namedtuple('Wide', [f'f{k}' for k in range(len(made))])(*made)", "subclass": "Sub(made)", "user list": "collections.UserList(made)",
    "defaultdict": "collections.defaultdict(lambda: 5, enumerate(made))", "object array": "np.array([*made, None], dtype=object)[:-1]", "modules": "nn.ModuleList(nn.Linear(4, 4) for _ in made)", "counter": "collections.Counter(dict.fromkeys(range(len(made)), 2))",
    "memory": "np.array([float(k) for k, _ in enumerate(made)])", "tensor": "torch.arange(float(4 * len(made))).view(-1, 4)", "text": "'abcdefghijkl'[:len(made)]", "range": "range(0, 3 * len(made), 3)", "bytes": "bytes(range(len(made)))",
    "getter": "Getter(made)", "array of Python": "array.array('d', [0.5 * k for k, _ in enumerate(made)])", "parameters": "nn.ParameterList(torch.full((4,), float(k)) for k, _ in enumerate(made))", "dict of pairs": "{(k, k): one for k, one in enumerate(made)}",
}  # fmt: skip
COMMON_POOLS = ("list", "list", "list", "tuple", "deque", "full deque", "long deque", "dict", "list of lists")

# How the pool is reached, and what the call is given for that.
WAYS = (
    *[("S.pool", "")] * 3, ("S.tables['p']", ""), ("S.two[1]", ""), ("POOL[0]", ""), ("a", ", S.pool"), ("a['p']", ", {'p': S.pool, 'q': 1}"), ("a[1]", ", (0, S.pool)"), ("net.pool", ""),
    ("getattr(S, 'pool')", ""), ("step_defaults.a", ""), ("S.get()", ""),
)  # fmt: skip

DRAWS = (
    *["es = [p[random.randrange(len(p))] for _ in range({k})]", "es = [random.choice(p) for _ in range({k})]", "es = random.sample(p, {k})"] * 3,
    "es = random.choices(p, k={k})", "es = [p[np.random.randint(len(p))]]", "es = [p[k] for k in np.random.randint(0, len(p), {k})]", "es = [p[k] for k in np.random.permutation(len(p))[:{k}]]",
    "es = [p[k] for k in torch.randint(len(p), ({k},))]", "es = [p[k] for k in torch.randint(len(p), ({k},)).tolist()]", "es = [p[torch.randint(len(p), ()).item()]]", "es = [p[torch.randint(len(p), ())]]",
    "es = [p[k] for k in torch.randperm(len(p))[:{k}]]", "es = [p[k] for k in torch.randperm(len(p))[:{k}].tolist()]", "es = [p[torch.multinomial(torch.ones(len(p)), 1).item()]]", "es = [p[x.argmax().item() % len(p)]]",
    "es = [p[k] for k in torch.multinomial(torch.ones(len(p)), {k}).tolist()]", "es = [p[int(x.abs().sum().item() * 10) % len(p)]]", "S.n += 1\nes = [p[S.n % len(p)]]", "es = [p[S.n]]\nS.n += 1", "es = [p[S.n]]\nS.n = (S.n + 1) % len(p)",
    "es = [p[-1 - random.randrange(len(p))]]", "es = [p[S.k]]", "es = [p[-S.k]]", "es = [p[S.k - len(p)], p[0]]", "es = [p[random.randint(0, len(p))]]", "es = [p[random.randint(0, len(p) - 1)]]", "es = [p[math.floor(random.random() * len(p))]]",
    "n = random.randrange(len(p))\nes = p[n:n + 2]", "n = random.randrange(len(p))\nes = p[:n]", "es = p[-1 - S.k:]", "es = [e for n, e in enumerate(p) if n % 3 == S.k % 3]", "n = random.randrange(len(p))\nes = [e for m, e in enumerate(p) if m == n]",
    "es = [*p][S.k:]", "es = list(itertools.islice(p, S.k, S.k + 2))", "order = list(range(len(p)))\nrandom.shuffle(order)\nes = [p[k] for k in order[:{k}]]", "es = sorted(p, key=lambda e: random.random())[:{k}]",
    "es = [p.get(random.randrange(len(p) + 1))]", "es = [p[k] for k in random.sample(range(len(p)), {k})]", "es = [p[k] for k in random.sample(list(p), {k})]", "es = [random.choice(list(p.values()))]", "es = random.sample(list(p.items()), 1)[0]",
    "es = [p[random.randrange(len(p))][0]]", "n = random.randrange(len(p))\nes = [p[n][random.randrange(len(p[n]))]]", "es = [operator.getitem(p, random.randrange(len(p)))]", "es = [p.__getitem__(random.randrange(len(p)))]",
    "es = list(operator.itemgetter(random.randrange(len(p)), 0)(p))", "es = list(zip(*random.sample(p, 2)))", "es = [p[bool(random.randrange(2))]]", "es = [p[np.random.choice(len(p))] for _ in range({k})]", "es = [p[n] for n in range(S.k, len(p), 3)]",
    "try:\n    es = [p[S.n]]\nexcept IndexError as error:\n    es = [p[0]]\n    S.text = str(error)\nS.n += 1", "n = random.randrange(len(p))\nes = [p[n], p[n]]", "es = [p[(random.random() * len(p)).__int__()]]", "es = [p[n := random.randrange(len(p))], p[n - 1], p[~n]]",
    "es = [max(p, key=lambda e: vec(e).sum().item())]", "es = [p[min(range(len(p)), key=lambda n: (n - S.k) ** 2)]]", "n = S.k\nes = []\nwhile n < len(p) and len(es) < 2:\n    es.append(p[n])\n    n += 2", "match p[S.k]:\n    case (first, *_): es = [first]\n    case other: es = [other]",
    "rng = S.rng\nes = [rng.choice(p)]", "es = [p[S.rng.randrange(len(p))]]", "es = [p[k] for k in S.gen.integers(0, len(p), {k})]", "es = [p[S.gen.integers(len(p))]]", "es = [p[torch.randint(len(p), (), generator=S.torch_rng).item()]]", "es = [p.f1]", "es = [p.popitem()[1]]",
    "es = [p.pop(random.randrange(len(p)))]", "es = [p.pop()]", "es = [p.popleft()]", "es = [p[0], p[-1]]", "p.rotate(1)\nes = [p[0]]", "p.rotate(random.randrange(3))\nes = [p[0]]", "es = [next(itertools.cycle(p))]", "es = [p[n] for n in heapq.nsmallest(2, range(len(p)), key=lambda n: -n)]",
    "es = [p[bisect.bisect([0.2, 0.5, 0.8], random.random()) % len(p)]]", "es = [p[divmod(S.n, len(p))[1]]]\nS.n += 3", "es = [p[round(random.random() * (len(p) - 1))]]", "es = [p[len(S.log) % len(p)]]\nS.log.append(0)", "es = [S.grid[random.randrange(2)][random.randrange(2)]]",
)  # fmt: skip

# What is done with the entries, and with the pool.
USES = (
    "pass", "pass", "pass", "S.total.add_(vec(es[0]).detach())", "S.total = S.total * 0 + vec(es[-1]).detach()", "S.last = es[0]", "S.last = es", "S.log.append(es[0])", "S.log.append(vec(es[0]))", "S.log.extend(es)", "S.row = (es[0], 1)",
    "base.add_(0.5)", "with torch.no_grad(): net[0].bias.mul_(0.9)", "with torch.no_grad(): vec(es[0]).mul_(0.5)", "with torch.no_grad(): es[0].add_(1)", "with torch.no_grad(): es[0][0].add_(1)", "es[0][0] = 7.0", "es[0].append(1)", "es[0]['a'] = 5", "es[0].a = 5",
    "es[0][0] += 1", "es[0] += 1", "p[0] = es[-1]", "p[-1] = vec(es[0])", "p[random.randrange(len(p))] = es[-1]", "n, m = random.randrange(len(p)), random.randrange(len(p))\np[n], p[m] = p[m], p[n]", "p[S.k] = es[0]", "p[S.k] = vec(es[0]) + 1", "p[S.n % len(p)] = 2.5",
    "p[random.randrange(len(p))] = random.random()", "p[random.randrange(len(p))] = x * 2", "del p[random.randrange(len(p))]", "del p[0]", "del p[-1]", "p.append(es[0])", "p.append(vec(es[0]) + 1)", "p.append(random.random())", "p.append((x, 1.0))", "p.pop()", "p.pop(0)", "p.popleft()", "p.appendleft(es[-1])",
    "p.reverse()", "p.insert(0, es[0])", "p.insert(random.randrange(3), es[0])", "p.extend(es)", "p += es[:1]", "random.shuffle(p)", "p.sort()", "p[1:2] = es", "p.remove(es[0])", "p.clear()\np.extend(es)", "p.update({0: es[0]})", "p[len(p)] = es[0]",
    "S.flag = es[0] is S.last", "S.flag = es[0] is p[0]", "S.flag = es[0] is es[-1]", "S.flag = es[0] is None", "S.flag = es[0] is SAME", "S.flag = es[0] == es[-1]", "S.flag = es[0] in p", "S.flag = es[0] in (1, 2.0, 'a')", "S.flag = p.index(es[0])", "S.flag = p.count(es[0])", "S.flag = [e is es[0] for e in p]",
    "S.seen[es[0]] = S.n", "S.seen[es[0]] = S.seen.get(es[0], 0) + 1", "S.names.add(es[0])", "S.flag = es[0] in S.names", "S.flag = hash(es[0]) == hash(es[-1])", "S.flag = {0: 'z', 1: 'o'}.get(es[0])", "S.flag = id(es[0]) == id(S.last)", "S.last = es[0] if S.last is None else S.last",
    "S.flag = es[0] > 0.5", "y = y + 1 if es[0] > 0.5 else y - 1", "y = y + 1 if es[0] else y - 1", "if isinstance(es[0], float): y = y * 2", "if es[0] is None: return y", "S.text = f'{es[0]}'", "S.text = '%s %r' % (es[0], es[-1])", "S.text = str(es)", "S.text = type(es[0]).__name__", "S.text = ','.join(es)",
    "S.kinds[type(es[0]).__name__] += 1", "S.flag = es[0].requires_grad", "S.flag = es[0].shape", "S.flag = es[0].is_leaf, es[0].grad_fn is None", "S.flag = es[0]._version", "S.flag = es[0].grad is None", "S.flag = es[0].data_ptr() == base.data_ptr()", "es[0].requires_grad_(True)", "es[0].grad = None", "S.flag = es[0]._is_view()",
    "S.flag = len(es[0])", "a, b = es[0]\ny = y + vec(a) - vec(b)", "a, *b = es[0]\nS.last = b", "S.flag = es[0].a", "y = y + vec(es[0].a)", "y = y + vec(es[0][1])", "y = y * es[0]['a']", "y = y + torch.stack(es).sum(0)", "y = y + torch.cat([vec(e) for e in es]).sum()", "y = y + torch.tensor(es).sum()", "y = y + torch.as_tensor(es[0])",
    "y = y + torch.stack([e[0] for e in es]).mean(0)", "y = y + torch.tensor([e[1] for e in es]).sum()", "a, b = zip(*es)\ny = y + torch.stack(a).sum(0) * sum(b)", "S.flag = float(np.mean([e[1] for e in es]))", "y = y + torch.from_numpy(np.stack(es)).sum()", "y = y + sum(es)", "y = y + max(es)", "y = y + es[0].sum()",
    "y = x[int(es[0])] + y", "y = y[: es[0]]", "y = y.repeat(es[0])", "y = y + (es[0] * 2 + 1) / 3", "y = y + es[0] ** 2", "y = y - es[0] % 3", "y = y * (es[0] // 2)", "y = es[0](x) + y", "S.best = max(S.best, es[0])", "S.best = es[0] if es[0] > S.best else S.best", "S.n = es[0]", "S.n += int(es[0])", "S.k = int(es[0]) % len(p)",
    "S.mean = 0.9 * S.mean + 0.1 * es[0]", "S.mean = 0.9 * S.mean + 0.1 * vec(es[0]).mean().item()", "y = y + vec(p[0])", "y = y + sum(vec(e) for e in p)", "y = y + len(p)", "S.copy = list(p)", "S.copy = p", "S.copy = copy.copy(p)", "S.copy = p[1:]", "S.copy = es[0]\nes[0] = 5", "y = y + vec(copy.deepcopy(es[0]))",
    "S.data = es[0].data", "S.data = es[0].detach()", "S.data = es[0].view(-1)", "S.data = es[0].numpy()", "S.data = es[0].clone().requires_grad_()", "S.total.copy_(vec(es[0]).detach())", "es[0].copy_(x)", "es[0].data = x * 2", "y = y + es[0]\nwith torch.no_grad(): es[0].mul_(0.5)\ny = y + es[0]", "torch._foreach_mul_([e.detach() for e in es], 0.5)",
    "(vec(es[0]) * w).sum().backward()", "y = y + torch.autograd.grad((vec(es[0]) * w).sum(), w)[0]", "y = y + w * vec(es[0])", "assert es[0] is not None", "S.pool = [*p]", "S.pool = p[::-1]", "S.pool, S.copy = S.copy, S.pool", "S.grid[random.randrange(2)][random.randrange(2)] = es[0]", "S.tables[random.randrange(3)] = es[0]", "del S.tables['p']",
    "raise ValueError(S.n)", "try:\n    y = y + vec(p[S.n + 3])\nexcept (IndexError, KeyError) as error:\n    S.text = repr(error)", "y = y + vec(next(iter(p)))", "for n, e in enumerate(es): y = y + n * vec(e)", "while es: y = y + vec(es.pop())", "S.one = {'e': es[0], 'es': es}", "S.pair = Row(es[0], x)", "S.obj = Made(es[0], 1)", "setattr(S, 'named', es[0])", "opaque(es[0])",
    "y = y + told(es)", "S.rows = [(n, e) for n, e in zip(range(3), es)]", "list(map(S.log.append, es))", "S.flag = all(e is not None for e in es)", "S.flag = any(torch.is_tensor(e) and e.sum() > 0 for e in es)", "S.shared = es[0] = es[-1]", "print(es[0])", "global POOL\nPOOL = [p, es[0]]",
)  # fmt: skip

_ROWS = "torch.stack([vec(e) for e in es] + [x, torch.arange(4.0)])"
_BACK = "opt.zero_grad(set_to_none={none})\nloss.backward()\nopt.step()"
BODIES = (
    "y = x * 2", "y = x + vec(es[0])", "y = sum(vec(e) for e in es) * x", f"with torch.no_grad(): y = net({_ROWS})", f"y = net({_ROWS})",
    *[f"loss = (net({_ROWS}) ** 2).mean()\n{_BACK}\ny = loss.detach()"] * 3, f"loss = F.mse_loss(net({_ROWS}), torch.ones(4))\n{_BACK}\ny = loss.item()",
    f"z = net({_ROWS})\nloss = z.sum() + (vec(es[0]) * z).sum()\n{_BACK}\ny = z.detach()",
)  # fmt: skip
RETURNS = (
    "y", "y", "y", "(y, [vec(e) for e in es])", "(y, es)", "(y, es[0])", "(y, vec(p[0]) * 2)", "(y, len(p), S.n)", "(y, p[random.randrange(len(p))])", "es[0]", "{'y': y, 'e': es[-1]}", "(y, [*p])", "(y, p)",
    "(y, es[0], S.last)", "vec(es[0])", "(y, sum(vec(e) for e in es) * 2)", "(y, S.flag, S.text)", "None", "[y, es[0], es[0]]", "(y, vec(es[0]).detach())", "(y, type(es[0]))",
)  # fmt: skip

CHANGES = (
    *["S.pool.append(entry())", "S.pool[r.randrange(len(S.pool))] = entry()", "put(pool())", "S.k = r.randrange(len(S.pool) + 1)"] * 3,
    "S.pool.pop()", "S.pool.popleft()", "S.pool.pop(0)", "S.pool.reverse()", "S.pool[:] = [entry() for _ in S.pool]", "S.pool[0] = r.choice([None, 3, 2.5, torch.ones(4), 'x', (1,), True, [1], np.ones(4), torch.ones(4).double()])",
    "S.pool[0] = S.pool[-1]", "S.pool[0], S.pool[1] = S.pool[1], S.pool[0]", "S.pool[r.randrange(len(S.pool))] = S.total", "S.pool[r.randrange(len(S.pool))] = S.last", "S.pool[r.randrange(len(S.pool))] = x", "S.pool[r.randrange(len(S.pool))] = out[-1]",
    "S.pool[r.randrange(len(S.pool))] = net[0].bias", "S.pool[r.randrange(len(S.pool))] = net[0].bias.grad", "S.pool[r.randrange(len(S.pool))] = net[0].bias.detach()", "S.pool[r.randrange(len(S.pool))] = base[:4]", "S.pool[r.randrange(len(S.pool))] = w", "S.pool[r.randrange(len(S.pool))] = [S.pool[0]]",
    "S.pool[len(S.pool)] = entry()", "del S.pool[0]", "S.pool.clear()", "put([*S.pool])", "put(tuple(S.pool))", "put(collections.deque(S.pool, maxlen=6))", "put(dict(enumerate(S.pool)))", "put(copy.deepcopy(S.pool))", "put(torch.randn(6, 4))", "put(np.random.rand(6, 4))", "put('abcdef')",
    "base.add_(1)", "S.pool[0].mul_(2)", "S.pool[0].requires_grad_(True)", "S.pool[0].data = torch.ones(4)", "S.pool[0] = S.pool[0].double()", "S.pool[0] = S.pool[0][:2]", "S.pool[0][0] = 9.0", "S.pool[0].append(3)", "S.pool[0].a = 4", "S.n = 0", "S.n = 2.0", "S.n = r.randrange(9)", "S.last = None", "S.last = S.pool[0]", "S.copy = [entry() for _ in range(5)]",
    "random.seed(3)", "torch.manual_seed(3)", "np.random.seed(3)", "S.rng = random.Random(7)", "S.log.clear()", "S.seen.clear()", "S.best = 0", "opt.zero_grad()", "net.eval()", "net.train()", "torch.set_grad_enabled(r.random() < 0.5)", "x.requires_grad_(True)", "x = torch.randn(4)", "S.grid.reverse()", "S.grid[0][1] = entry()", "w.grad = None", "S.pool[0] = torch.ones(4).to_sparse()",
    "random.shuffle(S.pool)", "S.pool.sort(key=repr)", "S.pool.extend([entry() for _ in range(8)])", "del S.pool[2:]", "S.pool.insert(0, S.pool[-1])", "S.pool[0] = S.pool[1] = entry()", "S.pool[0] = int(r.random() * 3)", "S.pool[:] = [SAME for _ in S.pool]", "S.pool[1] = SAME", "S.pool[0] = nn.Parameter(torch.ones(4))", "S.pool[0] = copy.copy(S.pool[0])", "S.pool[0].requires_grad_(False)",
)  # fmt: skip
