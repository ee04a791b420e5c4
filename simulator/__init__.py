"""Workloads, models and studies that ask how fresh a queue can keep its answers."""
