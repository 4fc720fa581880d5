"""The order of the examples of a run, and the clock that counts them."""

from nlu.config.durations import Clock
from nlu.config.schema import Run
from nlu.data.growing_set import GrowingSet
from nlu.data.mixture import MixedClock, MixedOrder, MixedStore
from nlu.data.opening import Store
from nlu.data.order import Order, Whole
from nlu.data.streaming import StreamClock
from nlu.training.ranks import Ranks


def order_of(config: Run, store: Store, ranks: Ranks) -> Order | MixedOrder:
    """Return the order of the examples that are trained on."""
    trainer = config.trainer
    orders = {
        part.member: Order(
            part.stored if isinstance(part.stored, GrowingSet) else Whole(part.lengths_N),
            seed=config.seed,
            batch_size=trainer.batch_size,
            accumulation=trainer.accumulation,
            bucket_batches=trainer.bucket_batches,
            window_rows=trainer.window_rows,
            rank=ranks.rank,
            world_size=ranks.world_size,
            wait=part.stored.wait if isinstance(part.stored, GrowingSet) else None,
        )
        for part in store.of_role("train").values()
    }
    if isinstance(store, MixedStore):
        return MixedOrder(orders, seed=config.seed, alpha=config.data["alpha"])
    return orders[""]


def clock_of(config: Run, store: Store, order: Order | MixedOrder) -> Clock:
    """Return what counts the examples of an order."""
    step = config.trainer.batch_size * config.trainer.accumulation
    if config.data.get("stream"):
        assert isinstance(order, Order), "a mixture is not streamed"
        return StreamClock(order, step)
    sizes = {part.member: len(part) for part in store.of_role("train").values()}
    return MixedClock.of(order, sizes, step) if isinstance(order, MixedOrder) else Clock(sizes[""], step)
