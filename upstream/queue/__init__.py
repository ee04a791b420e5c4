"""The update queue: one file for each of its layers."""
