"""Speed and memory of the queue, as ratios measured in one run."""
