"""One door to all certificates: the threat decides which one is made.

A kind of threat brings its certificate along: a function that takes the
model, the data, the threat and options of its own, under :func:`certifies`.
To add a threat, write its class and decorate one function.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from pyg_trust.report import Report

Route = TypeVar('Route', bound=Callable[..., Report])
_ROUTES: dict[type, Callable[..., Report]] = {}


def certifies(threat: type) -> Callable[[Route], Route]:
    """Registers the function that certifies against a kind of threat.

    .. code-block:: python

        @certifies(BitFlips)
        def certify_smoothed(model, data, threat, *, num_samples=10_000):
            ...

    Args:
        threat (type): the class of the threat; its subclasses go the same
            way, unless they have a function of their own.
    """
    if not isinstance(threat, type):
        raise TypeError(
            f"'threat' needs to be a class (got {type(threat).__name__})"
        )

    def register(route: Route) -> Route:
        _ROUTES[threat] = route
        return route

    return register


def certify(
    model: Any, data: Any = None, threat: Any = None, **options: Any
) -> Any:
    r"""Certifies what a model predicts against a threat.

    A certificate is of the model as it is now: ``report.speaks_of(model)``
    tells whether another one, or this one later, is the same by its tensors,
    attributes and code (``pyg_trust.certificates.identity``).

    The threat decides how:

    * a :class:`ThreatModel` (so many flips of edges): **exactly**, for models
      that are linear in personalized PageRank, see :func:`certify_pagerank`;
      what is certified is the deployed model, with its :obj:`alpha`,
      :obj:`K`, normalization, self-loops and dtype;
    * :class:`BitFlips` (noise on edges and binary features): **any** model of
      nodes or graphs, with confidence, by smoothing, see
      :func:`certify_smoothed`; what is certified is the smoothed classifier,
      which :class:`SmoothedClassifier` deploys. Where a model has exact
      certificates, these say more.

    For certain and any model, by votes over divided inputs: :class:`Divided`.
    Against poisoned training data:
    :meth:`~pyg_trust.unlearning.ShardedUnlearner.certify`.

    .. code-block:: python

        threat = ThreatModel(data, strength=6)
        report = certify(model, data, threat)

    :obj:`certify(logits, threat)` certifies logits that somebody else
    diffuses; the report lists what is assumed of them.

    Args:
        model (torch.nn.Module or Tensor): the model that is deployed, or
            logits before diffusion.
        data (Data): what the model is applied to; left out with logits.
        threat (ThreatModel or BitFlips): the attacker.
        **options (Any): those of the function that certifies against this
            kind of threat.

    Returns:
        Report: for a :class:`ThreatModel` a :class:`Certificate`, for
        :class:`BitFlips` a :class:`SmoothedCertificate`.

    Raises:
        TypeError: if nothing certifies against this kind of threat, or an
            option is not one of that function.
        ValueError: as the function that certifies.

    Example:
        >>> import torch
        >>> from pyg_trust.certificates import ThreatModel, certify
        >>> pairs = [(0, 1), (0, 2), (1, 2), (2, 3)]
        >>> edge_index = torch.tensor(pairs + [(v, u) for u, v in pairs]).t()
        >>> logits = torch.tensor([[3, 0], [3, 0], [1, 0], [0, 9]]).double()
        >>> threat = ThreatModel(edge_index, local_budget=1, num_nodes=4)
        >>> certify(logits, threat).status.tolist()  # 1 is robust, -1 broken
        [1, 1, -1, 1]
    """
    if threat is None and isinstance(model, Tensor):
        data, threat = None, data
    route = _route(threat)
    known = [
        name
        for name, parameter in inspect.signature(route).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    for name in options:
        if name not in known:
            raise TypeError(
                f"'{name}' is no option of certificates against a "
                f'{type(threat).__name__}, which are {known}'
            )
    return route(model, data, threat, **options)


def _route(threat: Any) -> Callable[..., Report]:
    for kind in type(threat).__mro__:
        if kind in _ROUTES:
            return _ROUTES[kind]
    kinds = ' or '.join(kind.__name__ for kind in _ROUTES)
    raise TypeError(
        f"'threat' needs to be a {kinds} (got {type(threat).__name__}): "
        'certify(model, data, threat), or certify(logits, threat)'
    )
