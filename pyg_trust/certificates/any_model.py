"""Entry point of all certificates, chosen by the type of the threat.

To add a threat, write its class and decorate one function: :func:`certifies`.
"""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from pyg_trust._checks import validated
from pyg_trust._moved import by_new_names
from pyg_trust.registries import Registry
from pyg_trust.report import Guarantee, Report
from pyg_trust.report.base import stated
from pyg_trust.report.charts import Chart
from pyg_trust.verify.promises import PROMISES

__all__ = ['CERTIFICATES', 'UserCertificate', 'certifies', 'certify']

Route = TypeVar('Route', bound=Callable[..., Report])

#: The functions that certify, by the names of the classes of threats.
CERTIFICATES: Registry[Callable[..., Report]] = Registry(
    'certificate', homes=('certificates.exact', 'certificates.smoothed')
)
_ROUTES: dict[type, tuple[str, Callable[..., Report]]] = {}


@validated
def certifies(threat: type) -> Callable[[Route], Route]:
    """Register a function that certifies against a type of threat.

    It is a decorator. :func:`certify` then calls the function for such a
    threat, and returns its report in a :class:`UserCertificate`.

    .. code-block:: python

        @certifies(MyThreat)
        def certify_mine(model, data, threat, *, num_samples=10_000):
            ...

    Args:
        threat (type): the class of the threat; subclasses without a function
            of their own use it, too.
    """
    name = threat.__name__

    def register(route: Route) -> Route:
        homes = (threat.__module__, getattr(route, '__module__', ''))
        ours = all(home.startswith('pyg_trust.') for home in homes)
        add = CERTIFICATES.builtin if ours else CERTIFICATES.register
        add(name)(route)
        _ROUTES[threat] = name, route
        return route

    return register


@dataclass(frozen=True)
class UserCertificate(Report):
    """Result of a certifying function that was registered by the user.

    It has all attributes of :obj:`found`.

    Args:
        threat (str): the name of the threat's class.
        found (Report): the report that the function returned.
    """

    threat: str
    found: Report

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        return getattr(self.found, name)

    def chart(self) -> Chart:
        """Return the chart of the user's report."""
        return self.found.chart()

    def guarantee(self) -> Guarantee:
        """Return the guarantee of the user's report, marked as not checked.

        The mark says that this package has not checked the function.
        """
        inner, note = self.found.guarantee(), CERTIFICATES.note(self.threat)
        if inner.procedure in PROMISES:
            return stated(
                inner.procedure,
                {**inner.values, 'vouched': note},
                assumptions=inner.values['notes'],
                not_covered=inner.values['limits'],
                data_sha256=inner.data_sha256,
                origin=inner.origin,
                checked=inner.checked,
                weights_sha256=inner.weights_sha256,
            )
        return dataclasses.replace(
            inner,
            promise=f'as says {note}: {inner.promise}',
            assumptions=(*inner.assumptions, f'NOT CHECKED: {note}'),
        )


def certify(
    model: Any, data: Any = None, threat: Any = None, **options: Any
) -> Any:
    """Certify the predictions of a model against a threat.

    * A :class:`ThreatModel` (a number of edge flips) certifies **exactly**
      models that end in personalized PageRank, by :func:`certify_pagerank`.
    * :class:`BitFlips` (noise on edges and binary features) certifies **any**
      model, by :func:`certify_smoothed`, with a confidence below 1. The
      certified classes are those of :class:`SmoothedClassifier`.

    To certify any model with certainty, by votes over parts of the input, use
    :class:`Divided`. A certificate is about the model as it is now:
    ``report.speaks_of(model)`` returns whether it still is.

    Args:
        model (torch.nn.Module or Tensor): the deployed model; or logits before
            propagation, ``[num_nodes, num_classes]``, for a ThreatModel.
        data (Data): the input of the model; left out with logits, as below.
        threat (ThreatModel or BitFlips): the attacker.
        **options (Any): further arguments of the function that certifies.

    Returns:
        Report: a :class:`Certificate`, a :class:`SmoothedCertificate`, or for
        a threat that you registered a :class:`UserCertificate`.

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
    name, route = _route(threat)
    by_new_names(options, route)
    known = [
        option
        for option, parameter in inspect.signature(route).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    for option in options:
        if option not in known:
            raise TypeError(
                f"'{option}' is no option of certificates against a "
                f'{type(threat).__name__}, which are {known}'
            )
    certificate = route(model, data, threat, **options)
    if not CERTIFICATES.is_own(name):
        return certificate
    if not isinstance(certificate, Report):
        raise TypeError(
            f'{CERTIFICATES.note(name)}, needs to return a Report (got '
            f'{type(certificate).__name__})'
        )
    return UserCertificate(name, certificate)


def _route(threat: Any) -> tuple[str, Callable[..., Report]]:
    len(CERTIFICATES)  # registers those of this package
    for kind in type(threat).__mro__:
        name, route = _ROUTES.get(kind, ('', None))
        if route is not None and CERTIFICATES.get(name) is route:
            return name, route
    kinds = ' or '.join(CERTIFICATES)
    raise TypeError(
        f"'threat' needs to be a {kinds} (got {type(threat).__name__}): "
        'certify(model, data, threat), or certify(logits, threat)'
    )
