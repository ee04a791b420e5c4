"""The memory limit: block, shed, error, and what is accounted for."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from tests.upstream.queue.opened import Clock, counts_add_up, open_update_queue, values
from upstream.errors import QueueFull
from upstream.model import Receipt
from upstream.queue.policies import Whittle


def wide(keys: range, width: int = 200) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"k": np.arange(keys.start, keys.stop), "v": [str(key) * width for key in keys]}
    )


class TestMemoryLimit:
    def test_error_says_how_many_rows_were_taken(self) -> None:
        queue = open_update_queue(memory_limit="1MiB", on_full="error")
        rows = wide(range(5000))
        with pytest.raises(QueueFull) as caught:
            queue.put_many(rows)
        taken = caught.value.accepted
        s = queue.snapshot()
        assert 0 < taken == s.accepted == s.waiting < 5000
        assert s.memory_bytes <= s.memory_limit_bytes
        queue.check()
        batch = queue.plan()
        assert batch.to_arrow().column("v").equals(rows.slice(0, taken).column("v"))
        with pytest.raises(QueueFull) as caught:
            queue.put_many(rows.slice(taken, 500))  # the batch is not committed
        assert caught.value.accepted < 500
        queue.commit(batch.id)
        queue.put_many(rows.slice(taken + caught.value.accepted, 200))
        counts_add_up(queue)

    def test_known_keys_need_no_room_of_their_own(self) -> None:
        queue = open_update_queue(memory_limit="1MiB", on_full="error")
        with pytest.raises(QueueFull):
            queue.put_many(pa.table({"k": np.arange(50_000), "v": np.arange(50_000)}))
        held = queue.waiting
        receipt = queue.put_many(pa.table({"k": np.arange(held), "v": np.arange(held)}))
        assert receipt.conflated == held

    def test_block_goes_on_when_another_thread_makes_room(self) -> None:
        queue = open_update_queue(memory_limit="1MiB", on_full="block", block_timeout_seconds=30.0)
        rows = wide(range(6000))
        receipts: list[Receipt] = []
        producer = threading.Thread(target=lambda: receipts.append(queue.put_many(rows)))
        producer.start()
        seen: list[int] = []
        while producer.is_alive() or queue.waiting:
            batch = queue.plan(300)
            seen += values(batch)
            queue.commit(batch.id)
        producer.join()
        assert seen == list(range(6000))
        assert receipts == [Receipt(accepted=6000, conflated=0, superseded=0, shed=0)]
        counts_add_up(queue)

    def test_a_receipt_counts_the_rows_of_its_own_call(self) -> None:
        """While one call waits for room, others put: each is told of its own rows."""
        queue = open_update_queue(
            time="t", memory_limit="1MiB", on_full="block", block_timeout_seconds=30.0
        )

        def rows(keys: range, time: int) -> pa.RecordBatch:
            return wide(keys).append_column("t", pa.array([time] * len(keys)))

        queue.put_many(rows(range(1), 1))
        receipts: list[Receipt] = []
        producer = threading.Thread(
            target=lambda: receipts.append(queue.put_many(rows(range(1, 4001), 1)))
        )
        producer.start()
        late = 0
        while producer.is_alive():
            if queue.waiting:  # an old update needs no room
                assert queue.put_many(rows(range(1), 0)) == Receipt(1, 0, 1, 0)
                late += 1
            batch = queue.plan(400)
            queue.commit(batch.id)
        producer.join()
        assert late > 0
        assert receipts == [Receipt(accepted=4000, conflated=0, superseded=0, shed=0)]
        assert queue.snapshot().accepted == 4001 + late
        counts_add_up(queue)

    def test_block_gives_up_in_the_end(self) -> None:
        queue = open_update_queue(memory_limit="1MiB", block_timeout_seconds=0.05)
        with pytest.raises(QueueFull, match="nobody made room") as caught:
            queue.put_many(wide(range(5000)))
        assert caught.value.accepted == queue.snapshot().accepted
        counts_add_up(queue)

    @pytest.mark.parametrize("policy", ["in-place", "linecutting", "whittle"])
    def test_shed_loses_units_and_counts_them(self, policy: str) -> None:
        clock = Clock()
        queue = open_update_queue(clock, memory_limit="1MiB", on_full="shed", policy=policy)
        shed = 0
        for start in range(0, 20_000, 1000):
            clock.now += 1.0
            receipt = queue.put_many(wide(range(start, start + 1000), width=30))
            assert receipt.accepted == 1000
            shed += receipt.shed
            s = queue.snapshot()
            assert s.shed == shed
            assert s.memory_bytes <= s.memory_limit_bytes
            counts_add_up(queue)
            queue.check()
        assert shed > 5000
        assert queue.snapshot().waiting == 20_000 - shed

    def test_in_place_sheds_who_waits_least(self) -> None:
        clock = Clock()
        queue = open_update_queue(clock, memory_limit="1MiB", on_full="shed")
        for key in range(6000):
            clock.now += 1.0
            queue.put_many(wide(range(key, key + 1), width=50))
        kept = queue.plan().to_arrow().column("k").to_pylist()
        first_gap = next(i for i, key in enumerate(kept) if i != key)
        assert first_gap > 0.6 * len(kept), "the oldest are kept"
        assert kept[-1] == 5999, "the one that came last found room"

    def test_whittle_sheds_the_least_valuable(self) -> None:
        """Whoever is lost scored lowest, but for the width of rate and weight classes."""
        clock, rng = Clock(), np.random.default_rng(8)
        rates = 2.0 ** rng.uniform(-6, 6, 8)
        queue = open_update_queue(
            clock,
            policy="whittle",
            memory_limit="400KiB",
            on_full="shed",
            weight_column="w",
            cost_seconds=0.5,
            rules=[{"prefix": str(group), "rate": float(r)} for group, r in enumerate(rates)],
        )
        since: dict[str, tuple[float, int, float]] = {}
        judged = 0
        for number in range(2500):
            clock.now += 0.01
            group, weight = int(rng.integers(0, 8)), float(np.float32(rng.uniform(0.1, 10)))
            key = f"{group}/{number}"
            full = queue.put({"k": key, "w": weight, "v": "x" * 150}).shed > 0
            since[key] = (clock.now, group, weight)
            if full:
                scores = {
                    name: Whittle().score(clock.now - at, rates[g], w, 0.5, 0)
                    for name, (at, g, w) in since.items()
                }
                meta = queue.keys.records()
                kept = set(queue.key_names(np.flatnonzero(~np.isnan(meta["since"]))))
                lost = since.keys() - kept
                lowest = min(scores[name] for name in kept - {key})
                assert max(scores[name] for name in lost) <= lowest * 2**0.5 * (1 + 1e-6)
                for name in lost:
                    del since[name]
                judged += len(lost)
        assert judged > 300


RSS_SCRIPT = """
import numpy as np, pyarrow as pa
from upstream import open_queue

def resident():
    pa.default_memory_pool().release_unused()
    with open("/proc/self/status") as status:
        return 1024 * next(int(l.split()[1]) for l in status if l.startswith("RssAnon"))

def fill(queue, start, stop):
    for at in range(start, stop, 50_000):
        keys = np.arange(at, at + 50_000)
        text = pa.array(keys).cast(pa.string())
        price = keys * 0.5
        queue.put_many(pa.table({"k": pa.compute.binary_join_element_wise("key-", text, ""),
                                 "bid": price, "ask": price, "note": text}))

import pyarrow.compute
queue = open_queue("memory:", key="k", policy=POLICY)
fill(queue, 0, 100_000)
before, accounted = resident(), queue.snapshot().memory_bytes
fill(queue, 100_000, 1_100_000)
grown, said = resident() - before, queue.snapshot().memory_bytes - accounted
print(grown, said)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("policy", ["whittle", "linecutting"])
def test_accounted_memory_is_what_the_process_grows_by(policy: str) -> None:
    script = RSS_SCRIPT.replace("POLICY", repr(policy))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    grown, said = map(int, done.stdout.split())
    assert said == pytest.approx(grown, rel=0.1)
