"""Where a queue lives when it must outlive its process."""
