"""Every promise the package makes, on data so small that it is quick.

Each entry of :data:`MADE` returns a report, or what else has a guarantee,
and, by the names that ``check_report`` takes, what an auditor is handed.
"""

import tempfile
from pathlib import Path
from unittest import mock

import torch
from procedures import (
    Private,
    classifier,
    cycle,
    dataset,
    liked,
    node_classifier,
)
from torch_geometric.data import HeteroData
from torch_geometric.nn import GCN

from pyg_trust import rng
from pyg_trust.audit import (
    AuditReport,
    ShardedSubject,
    audit_removal,
    empirical_epsilon,
    empirical_mu,
    membership_inference,
)
from pyg_trust.certificates import (
    BitFlips,
    Divided,
    ThreatModel,
    UserCertificate,
    certify,
    certify_collective,
    certify_ranks,
)
from pyg_trust.erasure import ErasureDesk
from pyg_trust.ledger import RemovalLedger
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.nn import PPNP
from pyg_trust.privacy import (
    PrivacyEngine,
    PrivateItemCounts,
    PrivateLinkPredictor,
    create_accountant,
    propose,
    search,
)
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.report import Guarantee, TrustReport
from pyg_trust.transforms import AGP, MetapathFeatures, PrivateAGP
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning import LinkClassifier, Recommender, ShardedUnlearner
from pyg_trust.update import Update
from pyg_trust.utils import local_cluster


def propagated(folder, **kwargs):
    data = cycle(12)
    return AGP('appnp', alpha=0.2, **kwargs).guarantee(data), {'data': data}


def exact(folder, **kwargs):
    torch.manual_seed(0)
    data = cycle(12)
    model = PPNP(torch.nn.Linear(5, 3), alpha=0.2).eval()
    threat = ThreatModel(data, 'removals', local_budget=1, **kwargs)
    report = certify(model, data, threat)
    return report, {'model': model.state_dict(), 'data': data}


def of_a_stranger(folder):
    report, files = exact(folder)
    return UserCertificate('Mine', report), files


def smoothing(data):
    torch.manual_seed(0)
    model = GCN(5, 4, 1, 2).eval()
    noise = BitFlips(edges=(0.0, 0.3), features=(0.05, 0.3))
    # With a seed it would be none. The same in every run of the tests.
    with mock.patch.object(rng, 'resolve_secret', return_value=1):
        report = certify(
            *(model, data, noise), num_samples=300, num_selection=50
        )
    return model, report


def binary():
    data = cycle(12)
    data.x = (data.x > 0.5).float()
    return data


def smoothed(folder):
    data = binary()
    model, report = smoothing(data)
    return report, {'model': model.state_dict(), 'data': data}


def collective(folder):
    data = binary()
    model, report = smoothing(data)
    made = certify_collective(report, model, data, K=1, edges=(0, 1))
    return made, {'model': model.state_dict(), 'data': data}


def ranked(folder):
    data = cycle(12)
    threat = ThreatModel(data, global_budget=1, undirected=True)
    report = certify_ranks(data, torch.tensor([0, 5]), threat, k=3)
    return report, {'data': data}


def voted(folder, by='nodes'):
    torch.manual_seed(0)
    data = cycle(12)
    model = GCN(5, 4, 1, 2).eval()
    report = Divided(model, 4, by, seed=0).certify(data)
    return report, {'model': model.state_dict(), 'data': data}


def private(folder):
    made = Private(folder).make()
    made.train()
    made.engine.close()
    return made.engine.report(1e-3), {
        'model': dict(made.net.state_dict()),
        'ledger': folder / 'ledger',
    }


def persons(folder):
    data = HeteroData()
    data['user'].x, data['user'].y = torch.rand(30, 2), torch.arange(30) % 2
    data['order'].x, data['item'].x = torch.rand(60, 2), torch.rand(9, 3)
    by, has = ('order', 'by', 'user'), ('order', 'has', 'item')
    each = torch.arange(60)
    data[by].edge_index = torch.stack([each, each * 7 % 30])
    data[has].edge_index = torch.stack([each, each % 9])
    unit = PrivacyUnit(data, 'user', owned={'order': by}, public=('item',))
    data = MetapathFeatures([[by], [by, has]], 'user', unit=unit)(data)
    made = Private(folder)
    made.net = GCN(7, 4, num_layers=2, out_channels=2)
    made.optimizer = torch.optim.SGD(made.net.parameters(), lr=0.1)
    made.walks = DisjointWalkLoader(data, 4, 0, unit=unit, num_steps=3, seed=0)
    made.make().train()
    made.engine.close()
    return made.engine.report(1e-3), {
        'model': dict(made.net.state_dict()),
        'ledger': folder / 'ledger',
    }


def searched(folder):
    bound = create_accountant('pld_wor')

    def train(_):
        made = Private(folder)
        made.engine = PrivacyEngine()
        made.make().train()
        return made.engine, 1.0

    made = Private(folder)
    made.engine = PrivacyEngine()
    made.make().train()
    for noise, rate, steps in made.engine.accountant.history:
        for _ in range(steps):
            bound.step(noise_multiplier=noise, sample_rate=rate)
    model, report = search(
        train, ['a', 'b'], bound=bound, delta=1e-3, mean_runs=1.5
    )
    return report, {'model': dict(model.state_dict())}


def nodes(folder, **kwargs):
    left, requests = cycle(40), []
    model = node_classifier(**kwargs).fit(left)
    requests.append(RemovalRequest(nodes=[20]))
    requests.append(RemovalRequest(nodes=[3, 9], edges=[(21, 22)]))
    for request in requests:
        report = model.remove(request)
        left = remove_from_data(left, request.parts[0])
    return report, {
        'model': {'weight': model.weight},
        'ledger': model.ledger.state_dict(),
        'data': left,
    }


def graphs(folder, **kwargs):
    model = classifier(**kwargs).fit(dataset())
    report = model.remove(RemovalRequest(graphs=[10, 9], nodes={3: [0]}))
    return report, {
        'model': {'weight': model.weight},
        'ledger': model.ledger.state_dict(),
    }


def unlearner(**kwargs):
    return ShardedUnlearner(
        lambda: GCN(5, 4, 1, 2),
        3,
        epochs=1,
        num_classes=2,
        aggregator='majority',
        **kwargs,
    )


def shards(folder):
    model = unlearner().fit(cycle(40))
    report = model.remove(RemovalRequest(nodes=[3, 9]))
    return report, {
        'model': {i: model.shard_state(i) for i in range(3)},
        'ledger': model.ledger.state_dict(),
        'data': model.data,
    }


def pairs_forgotten(folder):
    left = cycle(40)
    model = LinkClassifier(K=1, weight_decay=0.1, seed=0).fit(left)
    model.remove(RemovalRequest(nodes=[20]))
    report = model.remove(RemovalRequest(nodes=[3], edges=[(21, 22)]))
    for part in ({'nodes': [20]}, {'nodes': [3], 'edges': [(21, 22)]}):
        left = remove_from_data(left, RemovalRequest(**part).parts[0])
    return report, {
        'model': {'weight': model.weight},
        'ledger': model.ledger.state_dict(),
        'data': left,
    }


def counted(folder):
    model = Recommender().fit(liked(), 30, 20)
    report = model.remove(users=[3], items=[7])
    return report, {'ledger': model.ledger.state_dict()}


def solved(folder):
    model = Recommender('closed_form').fit(liked(), 30, 20)
    report = model.remove(users=[3])
    return report, {'ledger': model.ledger.state_dict()}


def poisoned(folder):
    # Shards come from secret keys: of some, no vote is worth a change.
    for _ in range(50):
        model = unlearner().fit(cycle(40))
        if model.certify().guarantee().values['certified']['1']:
            break
    return model.certify(), {
        'model': {i: model.shard_state(i) for i in range(3)}
    }


def audited(folder):
    return audit_removal(
        lambda: ShardedSubject(unlearner),
        cycle(40),
        RemovalRequest(nodes=[3, 9]),
        tests=('twins',),
        seed=1,
    ), {}


def aggregated(folder):
    data = cycle(20)
    transform = PrivateAGP(epsilon=1.0, delta=1e-3, insecure_seed=1)
    transform(data)
    return transform.report(), {}


def linked(folder):
    model = PrivateLinkPredictor(
        epsilon=1.0, delta=1e-3, steps=2, insecure_seed=1
    )
    return model.fit(cycle(20)).report(), {}


def linked_records(folder):
    model = PrivateLinkPredictor(
        'node', epsilon=1.0, delta=1e-3, steps=2, insecure_seed=1
    )
    return model.fit(cycle(20)).report(), {}


def tabled(folder):
    model = PrivateItemCounts(epsilon=1.0, delta=1e-3, insecure_seed=1)
    return model.fit(liked(), 30, 20).report(), {}


def covered(folder):
    data = cycle(20)
    model = PrivateLinkPredictor(epsilon=0.1, delta=1e-3, steps=2).fit(data)
    return model.remove(RemovalRequest(edges=[(0, 1)]), data), {}


MADE = {
    'AggregationReport': aggregated,
    'CoverageReport': covered,
    'ItemReport': tabled,
    'LinkReport': linked,
    'LinkReport, nodes': linked_records,
    'AGP, exact': propagated,
    'AGP, sampled': lambda folder: propagated(folder, eps=1e-3, seed=7),
    'AGP, cut': lambda folder: propagated(folder, level_tol=0.125, half=True),
    'Certificate': exact,
    'Certificate, global': lambda folder: exact(folder, global_budget=2),
    'UserCertificate': of_a_stranger,
    'SmoothedCertificate': smoothed,
    'CollectiveCertificate': collective,
    'RankCertificate': ranked,
    'VoteCertificate': voted,
    'PrivacyReport': private,
    'PrivacyReport, persons': persons,
    'SearchReport': searched,
    'ForgetReport, nodes': nodes,
    'ForgetReport, links': pairs_forgotten,
    'ForgetReport, push': lambda folder: nodes(
        folder, measure='ppr', alpha=0.2, features='push'
    ),
    'ForgetReport, graphs': graphs,
    'ForgetReport, objective': lambda folder: graphs(folder, noise_std=0.1),
    'ForgetReport, counts': counted,
    'ForgetReport, closed form': solved,
    'ForgetReport, shards': shards,
    'PoisonCertificate': poisoned,
    'RemovalAudit': audited,
}


def _fitted_shards():
    model = unlearner().fit(cycle(40))
    request = RemovalRequest(nodes=[3, 9])
    plan = model.plan(request)
    report = model.remove(request)
    return plan, model.report(), model.verify(shards=report.shards)


def _fitted_nodes():
    model = node_classifier().fit(cycle(40))
    return model.plan(RemovalRequest(nodes=[3])), model.verify()


def _membership():
    chance = torch.rand(12, 2, generator=torch.Generator().manual_seed(0))
    return membership_inference(
        chance.softmax(1), cycle(12).y, torch.arange(6), torch.arange(6, 12)
    )


#: Reports that promise nothing by themselves, by the names of their classes.
OTHERS = {
    'ForgetPlan, shards': lambda: _fitted_shards()[0],
    'ShardReport': lambda: _fitted_shards()[1],
    'VerifyReport, shards': lambda: _fitted_shards()[2],
    'ForgetPlan, nodes': lambda: _fitted_nodes()[0],
    'VerifyReport, nodes': lambda: _fitted_nodes()[1],
    'AdditionReport': lambda: (
        node_classifier()
        .fit(cycle(40))
        .update(Update(edges=torch.tensor([[0], [5]])))
    ),
    'ForgetPlan, counts': lambda: (
        Recommender().fit(liked(), 30, 20).plan(users=[1])
    ),
    'VerifyReport, counts': lambda: (
        Recommender().fit(liked(), 30, 20).verify()
    ),
    'VerifyReport, graphs': lambda: classifier().fit(dataset()).verify(),
    'MembershipReport': _membership,
    'AuditRow': lambda: audited(None)[0].rows[0],
    'AuditReport': lambda: AuditReport((), 0.95, {}),
    'PrivacyAudit': lambda: empirical_epsilon(
        torch.arange(200.0), torch.arange(150.0, 350.0), 1e-3, claim=1.0
    ),
    'PrivacyAudit, mu': lambda: empirical_mu(
        torch.arange(200.0), torch.arange(150.0, 350.0), claim=9.0
    ),
    'Proposal': lambda: propose(200, epsilon=4.0, delta=1e-4),
    'LocalCluster': lambda: local_cluster(cycle(30), 3),
    'LedgerEntry': lambda: RemovalLedger(1.0).record('fit', 0.25),
    'DeskPlan': lambda: _desk()[0],
    'DeskStatus': lambda: _desk()[1],
    'ErasureReport': lambda: _desk()[2],
    'TrustReport': lambda: TrustReport.of(
        private_guarantee(), nodes(None)[0].guarantee()
    ),
}


def _desk(folder=None):
    with tempfile.TemporaryDirectory() as made:
        desk = ErasureDesk(Path(folder or made) / 'desk.db')
        desk.recipient('partner')
        number = desk.add(RemovalRequest(nodes=[1])).subject_request_id
        found = desk.plan(), desk.status(), desk.done(number, 'partner')
        desk.close()
    return found


def private_guarantee():
    return Guarantee(
        *('training', 'it is private', ()),
        spent={'epsilon': 1.0},
        budget={'epsilon': 4.0},
    )
