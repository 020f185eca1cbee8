"""The same queries in SQL, for DuckDB: what the programs' results are checked against.

They follow the published ones; where those use window functions that DuckDB has not, the starts
of a row's windows are computed.  Tables are ``person``, ``auction`` and ``bid``.
"""

from __future__ import annotations

import pyarrow as pa

from .events import Nexmark, auctions_of, bids_of, people_of

_TUMBLE = "time_bucket(INTERVAL '10 seconds', dateTime)"

_HOPS = """
SELECT auction, count(*) AS num, start
FROM (
  SELECT auction,
         unnest([time_bucket(INTERVAL '2 seconds', dateTime) - to_seconds(2 * n)
                 FOR n IN range(5)]) AS start
  FROM bid)
GROUP BY auction, start
"""

SQL = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": """
        SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, dateTime, extra
        FROM bid""",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q5": f"""
        WITH counts AS ({_HOPS}),
             most AS (SELECT start, max(num) AS num FROM counts GROUP BY start)
        SELECT counts.auction, counts.num
        FROM counts JOIN most ON counts.start = most.start AND counts.num >= most.num""",
    "q7": f"""
        SELECT b.auction, b.bidder, b.price, b.dateTime, b.extra
        FROM bid b
        JOIN (SELECT max(price) AS price, {_TUMBLE} + INTERVAL '10 seconds' AS until
              FROM bid GROUP BY until) highest
        ON b.price = highest.price
        WHERE b.dateTime BETWEEN highest.until - INTERVAL '10 seconds' AND highest.until""",
    "q8": f"""
        SELECT p.id, p.name, epoch_ms(p.start) AS start
        FROM (SELECT id, name, {_TUMBLE} AS start FROM person GROUP BY ALL) p
        JOIN (SELECT seller, {_TUMBLE} AS start FROM auction GROUP BY ALL) a
        ON p.id = a.seller AND p.start = a.start""",
}


def tables(settings: Nexmark) -> dict[str, pa.Table]:
    """All events of a run as the tables that the queries read."""
    batches = [settings.batch(number) for number in range(settings.batches())]
    views = {"person": people_of, "auction": auctions_of, "bid": bids_of}
    return {
        name: pa.Table.from_batches([view(batch) for batch in batches])
        for name, view in views.items()
    }
