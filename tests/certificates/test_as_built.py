"""Attacks: a model that runs other code than what is certified.

Every one of them behaves as PageRank in the clean graph.
"""

import inspect
import types
from collections import OrderedDict

import pytest
import torch
from torch.nn import Linear, Module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.utils import to_undirected

from pyg_trust.certificates import ThreatModel, certify, diffusion
from pyg_trust.graph import CSRGraph
from pyg_trust.nn import PPNP, LabelPropagation, ppnp
from pyg_trust.nn.ppnp import PageRankDiffusion

FREE = {
    *('__doc__', '__module__', '__init__', '__repr__', '__annotations__'),
    *('__dict__', '__weakref__', '__str__', '__new__', '__init_subclass__'),
    *('logits', 'extra_repr', 'reset_parameters'),
}


def ring(n=6):
    nodes = torch.arange(n)
    edge_index = to_undirected(torch.stack([nodes, (nodes + 1) % n]))
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(n) % 2
    return Data(x=x, y=y, edge_index=edge_index)


def made(kind, **arguments):
    if issubclass(kind, LabelPropagation):
        return kind(num_classes=2, **arguments).eval()
    return kind(Linear(3, 2), **arguments).eval()


def refuses(model, name='model', data=None):
    data = ring() if data is None else data
    with pytest.raises((TypeError, ValueError), match=name):
        certify(model, data, ThreatModel(data, local_budget=1))


def names_of(base):
    """Every name that the classes of a model define, but what is free."""
    return sorted(
        {name for kind in base.__mro__ for name in vars(kind)} - FREE
    )


def the_same(value):
    """Something else that does the same, of a function or not."""
    if isinstance(value, types.FunctionType):

        def other(*args, **kwargs):
            return value(*args, **kwargs)

        return other
    if isinstance(value, property):
        return property(value.fget, value.fset, value.fdel)
    return value


def below(found, base):
    """A graph with fewer edges is scored as if it were the one with all."""

    class Deaf(base):
        def diffuse(self, h, graph, edge_weight=None):
            graph = CSRGraph.convert(graph, h.size(0), edge_weight)
            if graph.num_edges < found.edge_index.size(1):
                h = h.flip(1)
            return super().diffuse(h, graph)

    return made(Deaf)


@pytest.mark.parametrize('base', [PPNP, LabelPropagation])
def test_a_diffusion_that_minds_a_removal_is_refused(base):
    # On cd9bfce: certified, 34 nodes of a ring of 40 robust, 11 of which
    # changed by one removal.
    refuses(below(ring(), base), "'diffuse'")


@pytest.mark.parametrize(
    ('base', 'name'),
    [
        (base, name)
        for base in (PPNP, LabelPropagation)
        for name in names_of(base)
    ],
)
def test_no_name_of_the_hierarchy_may_be_another_one(base, name):
    static = inspect.getattr_static(base, name)
    plain = made(base, K=2)
    other = the_same(static)
    if other is static:
        # No Python: what is the very same may stay.
        def other(*args):
            return static(*args)

    # After it was made, so that its __init__ has nothing to say.
    plain.__class__ = type('Mine', (base,), {name: other})
    refuses(plain)


@pytest.mark.parametrize('name', ['forward', 'diffuse', 'message', 'eval'])
@pytest.mark.parametrize('base', [PPNP, LabelPropagation])
def test_no_name_may_be_patched(monkeypatch, base, name):
    home = next(kind for kind in base.__mro__ if name in vars(kind))
    model = made(base, K=2)
    monkeypatch.setattr(home, name, the_same(vars(home)[name]))
    refuses(model, f"'{name}'.*set in {home.__name__}")


def test_no_code_may_be_patched(monkeypatch):
    def diffuse(self, h, graph, edge_weight=None):
        return h

    monkeypatch.setattr(
        PageRankDiffusion.diffuse, '__code__', diffuse.__code__
    )
    refuses(made(PPNP), "'diffuse'")


@pytest.mark.parametrize(
    ('home', 'name'),
    [
        (ppnp, 'diffuse'),
        (ppnp, 'CSRGraph'),
        (diffusion, 'solve'),
        (CSRGraph, 'with_self_loops'),
        (SumAggregation, 'forward'),
        (MessagePassing, 'propagate'),
        (MessagePassing, 'aggregate'),
        (Module, '__getattr__'),
        (Module, '__call__'),
    ],
)
def test_nothing_that_is_called_may_be_patched(monkeypatch, home, name):
    model = made(PPNP, K=2)
    old = getattr(home, name)
    monkeypatch.setattr(home, name, lambda *a, **k: old(*a, **k))
    refuses(model, f"'{name}'")


@pytest.mark.parametrize(
    'name', ['__getattribute__', 'propagate', 'K', 'collect', '_explain']
)
def test_nothing_that_is_looked_up_may_be_added(monkeypatch, name):
    model = made(PPNP, K=2)
    old = inspect.getattr_static(PPNP, name, None)
    monkeypatch.setattr(PPNP, name, old, raising=False)
    if name == 'collect':  # of a compiled 'propagate', which is not there
        data = ring()
        certify(model, data, ThreatModel(data, local_budget=1))
        return
    if name == '__getattribute__':
        monkeypatch.setattr(
            PPNP, name, lambda self, k: object.__getattribute__(self, k)
        )
    refuses(model, f"'{name}'")


@pytest.mark.parametrize(
    'name',
    [
        name
        for name in names_of(PageRankDiffusion)
        # Others are looked up in the class, whatever the instance has.
        if not name.startswith('__')
        and not isinstance(inspect.getattr_static(PPNP, name), property)
    ],
)
def test_no_instance_may_hide_a_name(name):
    model = made(PPNP, K=2)
    vars(model)[name] = the_same(getattr(model, name)) or [0]
    if vars(model)[name] == getattr(type(model), name, None):
        vars(model)[name] = [0]
    if isinstance(vars(model)[name], types.MethodType):
        vars(model)[name] = [0]
    refuses(model)


def test_a_method_of_another_model_is_none_of_this_one():
    # Its function is the right one; what it calls is not.
    model, other = made(PPNP), below(ring(), PPNP)
    model.forward = types.MethodType(PPNP.forward, other)
    refuses(model, "'forward'")


def test_a_class_behind_the_class_is_seen():
    class Behind(PageRankDiffusion):
        def diffuse(self, h, graph, edge_weight=None):
            return super().diffuse(h, graph, edge_weight)

    class Mine(PPNP, Behind):
        pass

    class Sums(SumAggregation, PPNP):
        pass

    refuses(made(Mine), "'diffuse'")
    plain = made(PPNP)
    plain.__class__ = Sums
    refuses(plain, "'forward'")


def test_a_metaclass_can_not_speak_for_its_classes():
    class Polite(type):
        @property
        def __mro__(cls):
            return PPNP.__mro__

        @property
        def __dict__(cls):
            return {}

    class Mine(PPNP, metaclass=Polite):
        pass

    refuses(made(Mine), 'metaclass')


def test_what_only_says_it_is_a_model_is_none():
    class Speaks:
        __class__ = PPNP

        def __init__(self):
            self.__dict__.update(vars(made(PPNP)))

    refuses(Speaks(), "'model' needs to be linear")


@pytest.mark.parametrize('name', ['alpha', 'K', 'normalization', 'flow'])
def test_a_setting_is_no_property(name):
    hidden = '_' + name
    way = property(
        lambda self: getattr(self, hidden),
        lambda self, value: setattr(self, hidden, value),
    )
    refuses(made(type('Mine', (PPNP,), {name: way}), K=2), f"'{name}'")


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('K', 2.0),
        ('K', -1),
        ('K', True),
        ('alpha', 2.0),
        ('alpha', type('Mine', (float,), {})(0.15)),
        ('alpha', torch.tensor(0.15)),
        ('normalization', 'other'),
        ('add_self_loops', 1),
        ('flow', 'source_to_target'),
        ('node_dim', 0),
        ('fuse', True),
        ('_decomposed_layers', 2),
        ('_explain', True),
        ('_user_args', ['x_j']),
        ('inspector', object()),
    ],
)
def test_a_setting_is_what_it_was_checked_to_be(name, value):
    # On cd9bfce 'model.K = 2.0' ended in torch's own TypeError.
    model = made(PPNP, K=2)
    vars(model)[name] = value
    with pytest.raises((TypeError, ValueError), match=name.strip('_')):
        certify(model, ring(), ThreatModel(ring(), local_budget=1))


def test_the_sum_over_neighbours_is_the_models_own():
    class Sum(SumAggregation):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    model = made(PPNP, K=2)
    model.aggr_module = Sum()
    refuses(model, "'aggr_module'")
    model.aggr_module = SumAggregation()
    model.aggr_module.reduce = lambda *a, **k: None
    refuses(model, "'reduce'")
    model.aggr_module = SumAggregation()
    handle = model.aggr_module.register_forward_hook(lambda *args: None)
    refuses(model, 'no hook')
    handle.remove()
    model.aggr_module._forward_hooks = type('Mine', (OrderedDict,), {})()
    refuses(model, 'no hook')


def test_what_collects_arguments_is_the_models_own(monkeypatch):
    model = made(PPNP, K=2)
    collect = model.inspector.collect_param_data
    model.inspector.collect_param_data = lambda *args: collect(*args)
    refuses(model, "'inspector'")
    model = made(PPNP, K=2)
    monkeypatch.setattr(
        type(model.inspector), 'collect_param_data', lambda *args: {}
    )
    refuses(model, "'collect_param_data'")


def test_a_setting_that_is_gone_is_named():
    model = made(PPNP, K=2)
    del model.alpha
    refuses(model, "'alpha'")
    model = made(PPNP, K=2)
    model._forward_hooks = None
    refuses(model, 'no hook')


class Remembers(Module):
    def __init__(self, graph):
        super().__init__()
        self.inner, self.graph = Linear(3, 2), graph

    def forward(self, x):
        return self.inner(x)


SHARED = ring()


class ReadsGlobal(Module):
    def __init__(self):
        super().__init__()
        self.inner = Linear(3, 2)

    def forward(self, x):
        degree = SHARED.edge_index[0].bincount(minlength=x.size(0))
        return self.inner(x) * degree[:, None]


def test_an_encoder_that_holds_the_graph_is_refused():
    # On cd9bfce: certified, and its logits follow the graph.
    data = SHARED
    refuses(PPNP(ReadsGlobal()), 'do not depend on the edges')
    refuses(PPNP(Remembers(data)), 'do not depend on the edges')
    refuses(PPNP(Remembers([data.edge_index])), 'of the data', data)
    held = Remembers(None)
    held.register_forward_hook(lambda *args, data=data: None)
    refuses(PPNP(held), 'do not depend on the edges')


def test_an_encoder_that_looks_at_its_caller_is_noticed():
    class Peeks(Module):
        def forward(self, x):
            frame = inspect.currentframe()
            while (
                frame.f_code.co_name != 'forward'
                or frame.f_locals['self'] is self
            ):
                frame = frame.f_back
                if frame is None:
                    return x
            few = frame.f_locals['edge_index'].size(1) < 12
            return x.flip(1) if few else x

    refuses(PPNP(Peeks()), 'scores of node|same logits')


class Sly(torch.Tensor):
    """A tensor that turns the messages of a graph with one edge less."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.index_select and made.size(0) == 11:
            return -100 * made
        return made


class MakesSly(Module):
    def __init__(self):
        super().__init__()
        self.inner = Linear(3, 2)

    def forward(self, x):
        return self.inner(x).as_subclass(Sly)


class Attaches(MakesSly):
    def forward(self, x):
        h = self.inner(x)
        plain = h.index_select

        def index_select(dim, index):
            made = plain(dim, index)
            return -100 * made if made.size(0) == 11 else made

        h.index_select = index_select
        return h


@pytest.mark.parametrize('way', ['data', 'logits', 'attribute'])
def test_logits_that_act_in_the_diffusion_are_refused(way):
    # On cd9bfce: three nodes of six are robust, and change with an edge.
    data, encoder = ring(), Linear(3, 2)
    if way == 'data':
        data.x = data.x.as_subclass(Sly)
    else:
        encoder = MakesSly() if way == 'logits' else Attaches()
    refuses(PPNP(encoder, K=3), 'plain tensors', data)


def test_logits_that_mind_gradients_are_refused():
    # Whoever deploys it without 'no_grad' has another model.
    class Minds(Module):
        def forward(self, x):
            return x.flip(1) if torch.is_grad_enabled() else x

    refuses(PPNP(Minds()), 'when gradients were enabled')


class Casts(Module):
    def __init__(self):
        super().__init__()
        self.inner = Linear(3, 2)

    def forward(self, x):
        return self.inner(x).float()


def test_autocast_makes_another_model():
    data, model = ring(), PPNP(Casts()).eval()
    threat = ThreatModel(data, local_budget=1)
    with torch.autocast('cpu', torch.bfloat16):
        short = certify(model, data, threat)
        assert short.speaks_of(model)
    plain = certify(model, data, threat)
    assert not torch.equal(short.lower, plain.lower)
    assert plain.speaks_of(model)
    assert not short.speaks_of(model)


@pytest.mark.parametrize('kind', ['cuda', 'mkldnn'])
def test_products_in_tf32_make_another_model(kind, monkeypatch):
    # On cd9bfce: it spoke of the model in either precision.
    data, model = ring(), PPNP(Linear(3, 2)).eval()
    plain = certify(model, data, ThreatModel(data, local_budget=1))
    product = getattr(torch.backends, kind).matmul
    if not hasattr(product, 'fp32_precision'):
        pytest.skip('this torch has another switch')
    before = product.fp32_precision
    try:
        product.fp32_precision = 'ieee'
        assert plain.speaks_of(model)
        product.fp32_precision = 'tf32'
        assert not plain.speaks_of(model)
    finally:
        product.fp32_precision = before


def test_the_default_dtype_makes_another_model():
    # Labels are diffused in it, with the roundoff that the report accounts
    # for.
    data, model = ring(), LabelPropagation(num_classes=2, K=3)
    threat = ThreatModel(data, local_budget=1)
    torch.set_default_dtype(torch.float64)
    try:
        report = certify(model, data, threat)
        assert report.dtype == 'float64'
        assert report.speaks_of(model)
    finally:
        torch.set_default_dtype(torch.float32)
    assert not report.speaks_of(model)
    assert certify(model, data, threat).dtype == 'float32'


class Flips(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made.flip(1) if func is torch.nn.functional.linear else made


class Watches(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize('mode', [Flips, Watches])
def test_modes_of_the_process_are_refused(mode):
    # On cd9bfce: certified are the flipped logits, deployed others.
    data, model = ring(), made(PPNP)
    threat = ThreatModel(data, local_budget=1)
    report = certify(model, data, threat)
    with mode(), pytest.raises(ValueError, match=mode.__name__):
        certify(model, data, threat)
    with mode(), pytest.raises(ValueError, match=mode.__name__):
        report.speaks_of(model)
    with torch.device('cpu'):
        assert report.speaks_of(model)


def test_a_report_keeps_its_targets():
    # On cd9bfce: the report named whatever the caller's tensor held later.
    data, targets = ring(), torch.tensor([2, 4])
    report = certify(
        made(PPNP), data, ThreatModel(data, local_budget=1), targets=targets
    )
    targets.fill_(0)
    assert report.targets.tolist() == [2, 4]


def test_what_is_the_users_own_stays():
    class Helps:
        def help(self):
            return 2

    class Mine(PPNP, Helps):
        """Logits, names that the package does not know, and a saved one."""

        size = 3

        def logits(self, x):
            return self.help() * super().logits(x) + self._more(x)

        def _more(self, x):
            return x[:, :1]

    data = ring()
    threat = ThreatModel(data, local_budget=1)
    for kind in (Mine, PPNP):
        model = made(kind, K=2)
        model.note, model.extra = 'mine', Linear(2, 2)
        certify(model, data, threat)
    # Methods of the classes stay what they are under another name.
    model.__class__ = type('Same', (PPNP,), {'diffuse': PPNP.diffuse})
    certify(model, data, threat)


def test_a_process_that_compiles_still_certifies(monkeypatch):
    # What torch.compile does to Module, once a process.
    kept = Module.__setstate__
    monkeypatch.setattr(Module, '__setstate__', the_same(kept))
    data = ring()
    report = certify(made(PPNP), data, ThreatModel(data, local_budget=1))
    assert len(report.status) == 6
