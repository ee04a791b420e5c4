"""Update queues in front of Spark structured streaming queries."""
