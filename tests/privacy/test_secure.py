from torch_geometric import seed_everything


def test_seeding_everything_does_not_seed_secure_mode(private):
    ends = []
    for _ in range(2):
        setup = private(engine={'secure_mode': True, 'seed': None})
        seed_everything(5)
        setup.train()
        ends.append(setup.net.first.bias.detach())
    assert not ends[0].equal(ends[1])
